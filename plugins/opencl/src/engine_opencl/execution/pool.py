"""`ContextPool`: the plans of a network by input shapes, and their contexts."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from engine.errors import DeviceError, MemoryBudgetError, OutOfMemoryError, UnsupportedError
from engine.lowering import PlanCache, Shapes, shapes_of
from engine.plugin_api import RemoteTensor
from engine.properties import MEMORY_BUDGET, NO_LIMIT
from engine.runtime.lifecycle import ForkSafeLock
from engine_opencl.compiler import build_plan
from engine_opencl.devices.device import OpenclDevice, require_first_process
from engine_opencl.devices.forks import keep_after_fork
from engine_opencl.execution.context import Context
from engine_opencl.lowering import OpenclGraph
from engine_opencl.memory import planned_bytes
from engine_opencl.memory.weights import Weights
from engine_opencl.plan import LaunchPlan
from engine_opencl.programs.bundles import bundled
from engine_opencl.programs.programs import Building, Programs
from engine_opencl.tuning.tuner import OpenclTuner

_LINES: Final = 12
"""The lines of an error that a warning shows; the rest is the source."""
_log = logging.getLogger("engine.opencl")

_Key: TypeAlias = "tuple[Shapes, tuple[bytes, ...]]"
"""The shapes of the inputs, and the bytes of the bound ones."""


class PlannedMemory(NamedTuple):
    """The bytes of the weights that plans have on the device, of one inference there, of its staging memory on the
    host, and of each output.
    """

    weights: int
    arena: int
    staged: int
    results: tuple[int, ...]


class ContextPool:
    """Plans by input shapes and bound values, and their idle contexts. Thread-safe."""

    def __init__(
        self,
        prepared: OpenclGraph,
        device: OpenclDevice,
        programs: Programs,
        how: Building,
        tuner: OpenclTuner,
        size: int,
        profiling: bool,
        *,
        is_accurate: bool = False,
        budget: int = NO_LIMIT,
    ) -> None:
        """`budget`: how many bytes the weights and one inference may take on the device."""
        keep_after_fork(self)
        self._budget = budget
        self._prepared, self._device, self._programs = prepared, device, programs
        self._how, self._tuner = how, tuner
        self._profiling = profiling
        self._is_accurate = is_accurate
        self._weights = Weights(device)
        self.plans: PlanCache[_Key, LaunchPlan] = PlanCache(self._made, size, self._forget)
        self._idle: dict[int, list[Context]] = {}
        self._lock = ForkSafeLock()
        """Guards the idle contexts; acquired before any lock of `plans`."""

    def take(self, values: Sequence[Any]) -> Context:
        """A context for inputs of these shapes, owned by the caller. Raises `InputError`, `OutOfMemoryError`."""
        bound = tuple(_on_host(values[number]).tobytes() for number in self._prepared.bound)
        return self.take_for(shapes_of(values), bound)

    def take_for(self, shapes: Shapes, bound: tuple[bytes, ...] = ()) -> Context:
        """Like `take`; an input that is not a tensor has no shape. `bound`: the bytes of the bound inputs."""
        require_first_process()
        plan = self.plans.get((shapes, bound))
        with self._lock:
            waiting = self._idle.get(id(plan))
            if waiting:
                return waiting.pop()
        try:
            return self._new_context(plan)
        except OutOfMemoryError:
            with self._lock:
                has_idle = bool(self._idle)
                self._idle.clear()
            if not has_idle:
                raise
            # Idle contexts for other shapes have been freed.
            return self._new_context(plan)

    def _new_context(self, plan: LaunchPlan) -> Context:
        return Context(self._device, plan, self._weights, profiling=self._profiling)

    def put(self, context: Context) -> None:
        """Return a context; the context of an evicted plan is freed."""
        context.release()
        with self._lock:
            if any(plan is context.plan for plan in self.plans.plans()):
                self._idle.setdefault(id(context.plan), []).append(context)

    def binaries(self) -> dict[str, bytes]:
        """The compiled programs of all cached plans, by key."""
        built = {source: program for plan in self.plans.plans() for source, program in plan.programs.items()}
        return self._programs.binaries(built)

    def forecast(self, shapes: Shapes) -> PlannedMemory:
        """The memory of inferences with inputs of these shapes.

        Raises `InputError`, and `UnsupportedError` if plans depend on values of inputs.
        """
        if self._prepared.bound:
            raise UnsupportedError(
                f"OPENCL: the memory of `{self._prepared.graph.name}` is not known before an inference, since its "
                "kernels depend on values of inputs"
            )
        plan = self.plans.cached((shapes, ())) or self._planned((shapes, ()))
        arena, staged = planned_bytes(self._device, plan)
        results = [
            math.prod(shape) * result.input_value(0).element_type.numpy.itemsize
            for shape, result in zip(plan.shapes, self._prepared.graph.results, strict=True)
        ]
        return PlannedMemory(self._weights.nbytes(plan.read_weights), arena, staged, tuple(results))

    def _made(self, key: _Key) -> LaunchPlan:
        plan = self._planned(key)
        if self._budget < NO_LIMIT:
            self._require_budget(plan, key[0])
        _log.info("OPENCL: network `%s`: %s", self._prepared.graph.name, plan.summary())
        return self._built(plan)

    def _require_budget(self, plan: LaunchPlan, shapes: Shapes) -> None:
        needed = self._weights.nbytes(plan.read_weights) + planned_bytes(self._device, plan)[0]
        if needed > self._budget:
            listed = ", ".join(str(list(shape or ())) for shape in shapes)
            raise MemoryBudgetError(
                f"OPENCL: `{self._prepared.graph.name}` with inputs of shapes {listed} does not fit into "
                f"{MEMORY_BUDGET.name} ({self._budget} bytes): its weights and intermediate results take {needed} "
                "bytes on the device; give it more, or use smaller inputs",
                needed=needed,
            )

    def _planned(self, key: _Key) -> LaunchPlan:
        """The plan without its programs."""
        shapes, bound = key
        values = {}
        for number, data in zip(self._prepared.bound, bound, strict=True):
            element_type = self._prepared.graph.parameters[number].output(0).element_type
            values[number] = np.frombuffer(data, element_type.numpy).reshape(shapes[number] or ())
        facts = self._device.facts
        if self._is_accurate:
            facts = replace(facts, is_accurate=True, has_half_products=False)
        with self._prepared.compilation():
            return build_plan(self._prepared.at(shapes, values=values), facts, self._tuner)

    def _built(self, plan: LaunchPlan) -> LaunchPlan:
        """The plan with its programs, each of several kernels if that works."""
        joined = replace(plan, launches=bundled(plan.launches, self._device.facts), programs={})
        try:
            joined.programs.update(self._programs.build(joined.launches, plan.weights, self._how))
        except DeviceError as e:
            if joined.launches == plan.launches:
                raise
            # One by one, so that the error names the kernel that fails, unless only the program of several kernels
            # fails.
            plan.programs.update(self._programs.build(plan.launches, plan.weights, self._how))
            _log.warning(
                "OPENCL: a program of several kernels failed, so each has one of its own: %s",
                "\n".join(str(e).splitlines()[:_LINES]),
            )
            return plan
        return joined

    def _forget(self, plan: LaunchPlan) -> None:
        with self._lock:
            self._idle.pop(id(plan), None)
            self._weights.keep({name for kept in self.plans.plans() for name in kept.weights})


def _on_host(value: Any) -> Any:
    """The value of an input that plans depend on."""
    return value.to_host() if isinstance(value, RemoteTensor) else value
