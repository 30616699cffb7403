"""Forged plans of the native core: the calls that build a plan, with other sizes, offsets, operands and attributes.

Building raises `PlanError`, or running raises, or it runs within the memory of its buffers.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from engine.errors import EngineError, OutOfMemoryError
from engine.native import Context, PlanBuilder, kernels

from .finding import Finding, note
from .growing import grow
from .makers import MAKERS
from .mutants import core

Call = tuple[str, list[Any]]
METHODS = ("add_input", "add_output", "add_state", "add_buffer", "add_constant", "add_view", "add_step")
PLANS = 60
GUARD = 256
"""Bytes before and behind each array, which nothing may write."""
SIZES = (0, 1, 2, 4, 8, 16, 60, 64, 65, 128, 1000, 4096, 2**20, 2**31, 2**40, 2**62, 2**63 - 64)
NUMBERS = (
    0, 1, -1, 2, 3, 5, 8, 16, 17, 64, 100, 255, 1000, 4096, 2**20, 2**31 - 1, 2**31, 2**33, 2**40, 2**62, 2**63 - 1, -2,
    -(2**31), -(2**63),
)  # fmt: skip


@contextmanager
def recorded() -> Iterator[list[list[Call]]]:
    """Inside, the calls of every plan that is built are appended to the list."""
    plans: list[list[Call]] = []
    current: dict[int, list[Call]] = {}
    originals = {name: getattr(PlanBuilder, name) for name in (*METHODS, "build")}

    def wrap(name: str) -> Any:
        original = originals[name]

        def call(self: PlanBuilder, *arguments: Any, **named: Any) -> Any:
            made = original(self, *arguments, **named)
            current.setdefault(id(self), []).append((name, [*arguments, *named.values()]))
            return made

        return call

    def build(self: PlanBuilder) -> Any:
        plan = originals["build"](self)
        plans.append(current.pop(id(self), []))
        return plan

    for name in METHODS:
        setattr(PlanBuilder, name, wrap(name))
    PlanBuilder.build = build
    try:
        yield plans
    finally:
        for name, original in originals.items():
            setattr(PlanBuilder, name, original)


@functools.lru_cache(PLANS)
def base(index: int) -> list[list[Call]]:
    """The plans of a random graph on CPU, packings included."""
    with recorded() as plans:
        network = core().compile_model(grow(5000 + index, MAKERS, most_nodes=8).model()[0], "CPU")
        network.create_infer_request()
    return [plan for plan in plans if any(name == "add_step" for name, _ in plan)] or base(index + 1)


def make(seed: int) -> tuple[list[Call], str]:
    """The calls of a forged plan, and what was changed."""
    r = random.Random(f"plan {seed}")
    calls = [(name, _copied(arguments)) for name, arguments in r.choice(base(r.randrange(PLANS)))]
    made = [_change(r, calls) for _ in range(r.choice((1, 1, 1, 2, 3)))]
    return calls, "+".join(made)


def run_forged_plan(seed: int) -> str:
    """Build and run a forged plan."""
    note("making the plan")
    calls, made = make(seed)
    note(f"building a plan: {made}")
    builder = PlanBuilder()
    try:
        for name, arguments in calls:
            getattr(builder, name)(*arguments)
        plan = builder.build()
    except OutOfMemoryError:
        return "plan build: out of memory"
    except EngineError:
        return "plan build: refused"
    sizes = [arguments[0] for name, arguments in calls if name == "add_state"]
    if sum((*plan.inputs, *plan.outputs, *sizes)) > 1 << 28 or sizes:
        return "plan built"
    r = np.random.default_rng(seed)
    inputs = [_guarded(size, r) for size in plan.inputs]
    outputs = [_guarded(size, r) for size in plan.outputs]
    note(f"running a plan: {made}")
    try:
        Context(plan, 1).run([array for _, array in inputs], [array for _, array in outputs])
        outcome = "plan run"
    except OutOfMemoryError:
        outcome = "plan run: out of memory"
    except EngineError:
        outcome = "plan run: refused"
    for whole, array in (*inputs, *outputs):
        if not (whole[:GUARD] == 0xA5).all() or not (whole[GUARD + array.nbytes :] == 0xA5).all():
            raise Finding("written outside of a buffer", made)
    return outcome


def _guarded(size: int, r: np.random.Generator) -> tuple[Any, Any]:
    """An array of bytes, and the memory around it; the values are floats of moderate size, also as integers."""
    whole = np.full(size + 2 * GUARD + 64, 0xA5, np.uint8)
    start = -(whole.ctypes.data + GUARD) % 64
    whole = whole[start : start + size + 2 * GUARD]
    array = whole[GUARD : GUARD + size]
    array[...] = r.standard_normal(size // 4 + 1).astype(np.float32).view(np.uint8)[:size]
    return whole, array


def _copied(arguments: list[Any]) -> list[Any]:
    return [list(a) if isinstance(a, (list, tuple)) else dict(a) if isinstance(a, dict) else a for a in arguments]


def _change(r: random.Random, calls: list[Call]) -> str:
    name, arguments = r.choice(calls)
    if name == "add_step" or r.random() < 0.6:
        name, arguments = r.choice([call for call in calls if call[0] == "add_step"])
        return _change_step(r, calls, arguments)
    if name == "add_constant":
        array = arguments[0].reshape(-1)
        arguments[0] = np.ascontiguousarray(array[: r.randint(0, len(array))])
        return "a constant cut"
    if name == "add_view":
        index = r.choice((0, 1, 2, 1, 2))
        arguments[index] = r.randrange(len(calls)) if index == 0 else _size(r, arguments[index])
        return f"{name} {('of', 'offset', 'nbytes')[index]}"
    arguments[0] = _size(r, arguments[0])
    return name


def _change_step(r: random.Random, calls: list[Call], arguments: list[Any]) -> str:
    kernel = arguments[0]
    ids = sum(name not in ("add_step",) for name, _ in calls)
    kind = r.randrange(10)
    if kind == 0:
        arguments[0] = r.choice(kernels())
        return f"{kernel} became {arguments[0]}"
    if kind in (1, 2):
        operands = arguments[kind]
        if operands and r.random() < 0.7:
            operands[r.randrange(len(operands))] = r.randrange(ids)
        elif operands and r.random() < 0.5:
            del operands[-1]
        else:
            operands.append(r.randrange(ids))
        return f"{kernel} {('', 'inputs', 'outputs')[kind]}"
    attributes = arguments[3] if len(arguments) > 3 and arguments[3] else {}
    if not attributes:
        return f"{kernel} unchanged"
    key = r.choice(list(attributes))
    attributes[key] = _number(r, attributes[key])
    return f"{kernel}.{key}"


def _number(r: random.Random, old: Any) -> Any:
    if isinstance(old, (bool, str)):
        return r.choice(("", "f32", "i8", "u8", "relu", "none", old))
    if isinstance(old, (int, np.integer)):
        return (
            int(old) + r.choice((-2, -1, 1, 2, 7)) if r.random() < 0.5 and abs(int(old)) < 2**40 else r.choice(NUMBERS)
        )
    if isinstance(old, float):
        return r.choice((0.0, -1.0, 1e38, float("nan"), float("inf"), old * 2))
    values = list(old)
    match r.randrange(4):
        case 0 if values:
            del values[r.randrange(len(values))]
        case 1:
            values.append(values[-1] if values else 1)
        case _ if values:
            index = r.randrange(len(values))
            values[index] = _number(r, values[index])
    return values


def _size(r: random.Random, old: int) -> int:
    return max(0, int(old) + r.choice((-64, -4, -1, 1, 4, 64))) if r.random() < 0.5 else r.choice(SIZES)
