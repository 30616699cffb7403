"""`ContextPool`: the plans of a network for the shapes that come, and contexts over them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import InputError, ModelError, OutOfMemoryError
from engine.ir import Model, PartialShape, TensorType
from engine.runtime.lifecycle import ForkSafeLock
from engine_opencl.compiler import build_plan, folded
from engine_opencl.devices.device import require_first_process
from engine_opencl.execution.context import Context
from engine_opencl.memory.weights import Weights
from engine_opencl.plan import Plan
from engine_opencl.programs.programs import Building, Programs
from engine_opencl.properties import PLAN_CACHE_SIZE
from engine_opencl.tuning.tuner import Tuner

if TYPE_CHECKING:
    from engine_opencl.network import OpenclNetwork


class ContextPool:
    """Plans by input shapes, and contexts that wait for their next inference. Thread-safe."""

    def __init__(self, network: OpenclNetwork, programs: Programs, how: Building, tuner: Tuner) -> None:
        self._graph, self._device, self._programs = network.graph, network.device, programs
        self._how, self._tuner = how, tuner
        self._size, self._profiling = network.config[PLAN_CACHE_SIZE], network.is_profiling
        self._weights = Weights(network.device)
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._idle: dict[int, list[Context]] = {}
        self._lock = ForkSafeLock()
        self._making = ForkSafeLock()
        """A plan. Taken before `_lock`, which is held for moments alone: inferences go on while others compile."""

    def take(self, values: Sequence[Any]) -> Context:
        """A context for inputs of these shapes, for the caller alone. Raises `InputError`, `OutOfMemoryError`."""
        return self.take_for(tuple(getattr(value, "shape", None) for value in values))

    def take_for(self, shapes: tuple[tuple[int, ...] | None, ...]) -> Context:
        """As `take`; an input that is no tensor has no shape."""
        require_first_process()
        plan = self._plan(shapes)
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
            # What waits for inputs of other shapes has made room.
            return self._new_context(plan)

    def _new_context(self, plan: Plan) -> Context:
        return Context(self._device, plan, self._weights, profiling=self._profiling)

    def put(self, context: Context) -> None:
        """Give a context back; that of a plan that is no longer kept is let go."""
        context.release()
        with self._lock:
            if any(plan is context.plan for plan in self._plans.values()):
                self._idle.setdefault(id(context.plan), []).append(context)

    def binaries(self) -> dict[str, bytes]:
        """The compiled programs of all plans that are kept, by key."""
        with self._lock:
            built = {source: program for plan in self._plans.values() for source, program in plan.programs.items()}
        return self._programs.binaries(built)

    def _plan(self, shapes: tuple[Any, ...]) -> Plan:
        plan = self._kept(shapes)
        if plan is not None:
            return plan
        with self._making:
            plan = self._kept(shapes)
            if plan is None:
                plan = self._made(shapes)
                self._keep(shapes, plan)
            return plan

    def _kept(self, shapes: tuple[Any, ...]) -> Plan | None:
        with self._lock:
            if shapes in self._plans:
                self._plans.move_to_end(shapes)
            return self._plans.get(shapes)

    def _made(self, shapes: tuple[Any, ...]) -> Plan:
        graph = specialized(self._graph, shapes)
        folded(graph)
        plan = build_plan(graph, self._device.facts, self._tuner)
        plan.programs.update(self._programs.build(plan.launches, plan.weights, self._how))
        return plan

    def _keep(self, shapes: tuple[Any, ...], plan: Plan) -> None:
        with self._lock:
            self._plans[shapes] = plan
            if len(self._plans) > self._size:
                _, dropped = self._plans.popitem(last=False)
                self._idle.pop(id(dropped), None)
                self._weights.keep({name for kept in self._plans.values() for name in kept.weights})


def specialized(model: Model, shapes: Sequence[tuple[int, ...] | None]) -> Model:
    """A copy of `model` for inputs of known shapes, with all types inferred again; None leaves an input as it is."""
    copy = model.clone()
    for parameter, shape in zip(copy.parameters, shapes, strict=True):
        if shape is not None and isinstance(parameter.type, TensorType):
            parameter.type = TensorType(parameter.type.element_type, PartialShape(shape))
    try:
        copy.validate()
    except ModelError as e:
        listed = ", ".join(f"{p.friendly_name} {list(s or ())}" for p, s in zip(copy.parameters, shapes, strict=True))
        raise InputError(f"model `{model.name}` cannot take inputs {listed}: {e}") from e
    return copy
