"""Lengths that vary: each set of lengths has a plan, and plans that are no longer kept take no memory.

If this fails, a service whose lengths vary runs out of the device's memory.
"""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from engine_opencl.programs.programs import Programs

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, Result, f32

FACTORS = np.array([1, 2, 3], np.float32)


def network(core: Core | None = None) -> Any:
    """x: [n, 3] times a constant expanded to the shape of x, which is folded for each n."""
    x = Parameter(f32, (None, 3), "x")
    y = ops.Mul(ops.Neg(x), ops.Expand(Constant(FACTORS), ops.Shape(x)))
    return (core or Core()).compile_model(Model([Result(y, "y")], [x]), "OPENCL", {"PLAN_CACHE_SIZE": 2})


def numbers(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)


def test_weights_of_plans_that_are_dropped_are_let_go() -> None:
    compiled = network()
    held = compiled.pool._weights._buffers
    for n in (1, 2, 3, 4, 5, 3, 1):
        np.testing.assert_array_equal(compiled({"x": numbers(n)})["y"], -numbers(n) * FACTORS)
        held = compiled.pool._weights._buffers
        kept = {name for plan in compiled.pool.plans.plans() for name in plan.weights}
        assert set(held) <= kept
    assert held


def test_programs_of_plans_that_are_dropped_are_let_go() -> None:
    """A program takes megabytes, and each set of lengths brings its own; two networks share programs."""
    core = Core()
    compiled, twin = network(core), network(core)
    seen: dict[int, list[weakref.ref[Any]]] = {}
    for n in (1, 2, 3, 4):
        compiled({"x": numbers(n)})
        newest = compiled.pool.plans.plans()[-1]
        assert set(newest.programs) == {launch.source for launch in newest.launches}
        seen[n] = [weakref.ref(program) for program in newest.programs.values()]
    twin({"x": numbers(4)})
    shared = twin.pool.plans.plans()[-1].programs
    assert all(any(each() is program for each in seen[4]) for program in shared.values())
    kept = {id(program) for plan in compiled.pool.plans.plans() for program in plan.programs.values()}
    del newest
    gc.collect()
    assert not any(each() is not None and id(each()) not in kept for each in seen[1] + seen[2])
    np.testing.assert_array_equal(compiled({"x": numbers(1)})["y"], -numbers(1) * FACTORS)


def test_an_inference_goes_on_whose_plan_is_dropped_meanwhile() -> None:
    compiled = network()
    context = compiled.pool.take([numbers(7)])
    for n in (1, 2, 3):
        compiled({"x": numbers(n)})
    assert all(plan is not context.plan for plan in compiled.pool.plans.plans())
    context.upload([numbers(7)])
    context.compute(lambda: None)
    context.wait()
    result = np.empty((7, 3), np.float32)
    context.download(0, result)
    np.testing.assert_array_equal(result, -numbers(7) * FACTORS)


def test_inferences_go_on_while_other_lengths_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = network()
    compiled({"x": numbers(1)})
    build, begun, may_go_on = Programs.build, threading.Event(), threading.Event()

    def held_up(*arguments: Any) -> Any:
        begun.set()
        assert may_go_on.wait(60)
        return build(*arguments)

    monkeypatch.setattr(Programs, "build", held_up)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(compiled, {"x": numbers(2)})
        assert begun.wait(60)
        quick = threads.submit(compiled, {"x": numbers(1)})
        try:
            np.testing.assert_array_equal(quick.result(60)["y"], -numbers(1) * FACTORS)
        finally:
            may_go_on.set()
        np.testing.assert_array_equal(slow.result(60)["y"], -numbers(2) * FACTORS)


def test_what_lengths_alone_decide_needs_no_kernel() -> None:
    """Exporters write a list of all positions as the NonZero of ones, which has no kernel."""
    x = Parameter(f32, (None, 3), "x")
    ones = ops.ConstantOfShape(ops.Shape(x, start=0, end=1), value=np.array([1]))
    rows = ops.Squeeze(ops.NonZero(ones), Constant(np.array([0])))
    model = Model([Result(ops.Gather(ops.Neg(x), rows), "y")], [x])
    core = Core()
    assert core.query_model(model, "OPENCL").is_supported
    compiled = core.compile_model(model, "OPENCL")
    for n in (1, 4):
        np.testing.assert_array_equal(compiled({"x": numbers(n)})["y"], -numbers(n))
