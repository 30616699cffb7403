"""`PlanCache`: a model with unknown lengths, and the programs for the input shapes that were met lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from engine.errors import InputError, ModelError
from engine.ir import Model, Node, PartialShape, TensorType, paused_collector
from engine.runtime.lifecycle import ForkSafeLock
from engine_cpu.program import Program, Value

Shapes = tuple["tuple[int, ...] | None", ...]
"""The shape of each input; None for what is no tensor."""


class PlanCache:
    """Makes a program for each combination of input shapes when it first comes, and keeps the last `size`.

    Thread-safe; a program is made by one thread while others that need it wait.
    """

    def __init__(self, model: Model, build: Callable[[Model], Program], size: int) -> None:
        self.model = model
        self._build = build
        self._size = size
        self._programs: OrderedDict[Shapes, Program] = OrderedDict()
        self._lock = ForkSafeLock()

    def program(self, inputs: Sequence[Value]) -> Program:
        """The program for inputs of these shapes. Raises `InputError` where the model cannot take them."""
        shapes: Shapes = tuple(getattr(value, "shape", None) for value in inputs)
        with self._lock:
            program = self._programs.get(shapes)
            if program is not None:
                self._programs.move_to_end(shapes)
                return program
            with paused_collector():  # while an inference waits
                program = self._build(specialized(self.model, shapes))
            self._programs[shapes] = program
            if len(self._programs) > self._size:
                self._programs.popitem(last=False)
            return program

    def programs(self) -> list[Program]:
        """Those that are kept now."""
        with self._lock:
            return list(self._programs.values())


def specialized(model: Model, shapes: Shapes) -> Model:
    """A copy of `model` for inputs of known shapes, with all types inferred again."""
    copy = model.clone()
    for parameter, shape in zip(copy.parameters, shapes, strict=True):
        if shape is not None and isinstance(parameter.type, TensorType):
            parameter.type = TensorType(parameter.type.element_type, PartialShape(shape))
    try:
        for node in copy.ordered_nodes():
            _infer(node)
    except ModelError as e:
        listed = ", ".join(f"{p.friendly_name} {list(s or ())}" for p, s in zip(copy.parameters, shapes, strict=True))
        raise InputError(f"model `{model.name}` cannot take inputs {listed}: {e}") from e
    return copy


def _infer(node: Node) -> None:
    """Infer types; a node with bodies keeps its own where that fails, as in a branch that is never taken."""
    try:
        node.infer_types()
    except ModelError:
        if not node.bodies:
            raise
