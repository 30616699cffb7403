"""Chains of elementwise operators that are too wide, or too long, for one kernel.

If this fails, models with wide sums do not run on devices that allow the 1024 bytes of arguments that OpenCL asks for,
and compiling unrolled loops takes minutes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from engine_opencl.devices.device import find_devices
from engine_opencl.lowering import expression_kernel

from engine import Core, ops
from engine.ir import Constant, Model, Output, Parameter, boolean, f16, f32, i64
from engine.plugin_api import ExecutableNetwork


def compiled(model: Model) -> ExecutableNetwork:
    return Core().compile_model(model, "OPENCL")


def numbers(count: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(-8, 8, shape).astype(np.float32) for _ in range(count)]


@pytest.fixture
def few_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose kernels take three pointers."""
    first = find_devices()[0]
    monkeypatch.setattr(first, "facts", replace(first.facts, argument_bytes=4 * first.facts.address_bits // 8))


@pytest.mark.parametrize("count", [3, 4, 5, 12])
def test_a_sum_of_many_inputs(few_arguments: None, count: int) -> None:
    given = numbers(count, (3, 5))
    inputs = [Parameter(f32, ["n", 5], f"x{number}") for number in range(count)]
    network = compiled(Model([ops.Sum(*inputs)], inputs))
    np.testing.assert_array_equal(network(given)[0], sum(given))
    nothing = [each[:0] for each in given]
    assert network(nothing)[0].shape == (0, 5)


def test_a_tree_whose_branches_are_wide(few_arguments: None) -> None:
    """Nested parts, broadcast inputs, and an input that both branches read."""
    given = numbers(6, (4, 3))
    given[1] = given[1][:1]
    inputs = [Parameter(f32, each.shape, f"x{number}") for number, each in enumerate(given)]
    a, b, c, d, e, f = inputs
    tree = ops.Mul(ops.Sub(ops.Add(a, b), ops.Mul(c, a)), ops.Sub(ops.Add(d, e), ops.Mul(f, a)))
    xa, xb, xc, xd, xe, xf = given
    expected = ((xa + xb) - xc * xa) * ((xd + xe) - xf * xa)
    np.testing.assert_array_equal(compiled(Model([tree], inputs))(given)[0], expected)


def test_parts_of_every_type(few_arguments: None) -> None:
    """Integers beyond float precision, bool, and f16, which is rounded only at the end of the chain."""
    n = [Parameter(i64, [4], f"n{number}") for number in range(4)]
    b = [Parameter(boolean, [4], f"b{number}") for number in range(4)]
    h = [Parameter(f16, [4], f"h{number}") for number in range(4)]
    sums: list[Output | Parameter] = [reduce(ops.Add, n), reduce(ops.Or, b), ops.Sum(*h)]
    network = compiled(Model([ops.Where(sums[1], sums[2], Constant(np.float16(0))), sums[0]], [*n, *b, *h]))
    whole = [np.array([1 << 60, -3, 5, number]) for number in range(4)]
    flags = [np.array([False, number == 2, number == 3, False]) for number in range(4)]
    halves = [np.array([2048, 2048, 1, 0], np.float16), *[np.full(4, 0.75, np.float16)] * 3]
    chosen, total = network([*whole, *flags, *halves]).values()
    np.testing.assert_array_equal(total, sum(whole))
    expected = np.sum([each.astype(np.float32) for each in halves], axis=0).astype(np.float16)
    np.testing.assert_array_equal(chosen, np.where(np.logical_or.reduce(flags), expected, np.float16(0)))


def test_a_long_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains slightly and far longer than the limit of a kernel use the minimum number of kernels."""
    monkeypatch.setattr(expression_kernel, "_MAX_OPERATIONS", 4)
    for length, kernels in ((4, 1), (5, 2), (8, 2), (21, 6)):
        x = Parameter(f32, [3], "x")
        value = reduce(lambda value, number: (ops.Abs if number % 2 else ops.Neg)(value), range(length), x)
        network = Core().compile_model(Model([value], [x]), "OPENCL", {"PERF_COUNT": True})
        request = network.create_infer_request()
        given = np.array([1, -2, 3], np.float32)
        np.testing.assert_array_equal(request.infer([given])[0], np.abs(given) if length % 2 == 0 else -np.abs(given))
        assert len(request.profiling_info.nodes) == kernels
