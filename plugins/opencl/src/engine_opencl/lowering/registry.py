"""What the device knows of an operator: one class each, found by the operator's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from engine.ir import Constant, ElementType, Node, Output, TensorType
from engine.ir.types import UNKNOWN
from engine_opencl.elements import FLOATS

if TYPE_CHECKING:
    from engine_opencl.plan import PlanBuilder


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node has no kernel; `cause` is one of "op", "element type", "attribute", "dynamic shape", "constant"."""

    cause: str
    reason: str


class OpLowering(ABC):
    """How one operator, or several that are alike, becomes launches of kernels."""

    @abstractmethod
    def check(self, node: Node) -> Refusal | None:
        """Say why `node` cannot run here; None where it can. Lengths may be unknown: the answer holds for all."""

    @abstractmethod
    def lower(self, node: Node, b: PlanBuilder) -> None:
        """Add the launches of `node`. All shapes are known."""


_L = TypeVar("_L", bound=type[OpLowering])
_LOWERINGS: Final[dict[tuple[str, str], OpLowering]] = {}


def lowers(*op_types: str, domain: str = "") -> Callable[[_L], _L]:
    """Register a class of lowerings, made without arguments, for operators of one domain."""

    def register(cls: _L) -> _L:
        lowering = cls()
        for op_type in op_types:
            if (domain, op_type) in _LOWERINGS:
                raise ValueError(f"{op_type} of domain {domain!r} has two lowerings")
            _LOWERINGS[domain, op_type] = lowering
        return cls

    return register


def find_lowering(node: Node) -> OpLowering | None:
    """The lowering for a node's operator; None where it has none."""
    return _LOWERINGS.get((node.domain, node.op_type))


def refusal(node: Node) -> Refusal | None:
    """Why `node` cannot run here; None where it can."""
    lowering = find_lowering(node)
    if lowering is None:
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        return Refusal("op", f"{name} has no kernel on this device")
    for value in (*node.input_values, *node.outputs):
        if value is None or is_left_out(value):
            continue
        if not isinstance(value.type, TensorType):
            return Refusal("element type", f"{value.name} is {value.type}; expected a tensor")
        if value.shape.rank.is_dynamic:
            return Refusal("dynamic shape", f"the rank of {value.name} is unknown")
    return lowering.check(node)


def is_left_out(value: Output) -> bool:
    """True for an optional output that the model leaves out, before others that it names: it has no type."""
    return value.type == UNKNOWN and not value.target_inputs


def check_types(values: Iterable[Output | None], allowed: Collection[ElementType] = FLOATS) -> Refusal | None:
    """A refusal where a value that is given has another element type, or another floating-point type than the rest."""
    first: Output | None = None
    for value in values:
        if value is None or is_left_out(value):
            continue
        if value.element_type not in allowed:
            names = ", ".join(sorted(each.name for each in allowed))
            return Refusal("element type", f"{value.name} is {value.element_type}; expected one of {names}")
        if value.element_type in FLOATS:
            first = first or value
            if value.element_type is not first.element_type:
                reason = (
                    f"{value.name} is {value.element_type} and {first.name} {first.element_type}; expected one type"
                )
                return Refusal("element type", reason)
    return None


def check_constant(node: Node, *indices: int) -> Refusal | None:
    """A refusal where an input that is given is computed during an inference."""
    for index in indices:
        if node.has_input(index) and not is_known_when_bound(node.input_value(index)):
            name = node.input_value(index).name
            return Refusal("constant", f"input {index} ({name}) is computed during an inference; expected a constant")
    return None


def is_known_when_bound(value: Output) -> bool:
    """True for what is constant once the lengths of all inputs are known: constants, and what is made of shapes."""
    seen: set[Node] = set()
    stack = [value.node]
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Constant) or node.op_type in ("Shape", "Size"):
            continue
        if node.op_type == "Parameter" or node.bodies or not node.num_inputs:
            return False
        seen.add(node)
        stack.extend(source.node for source in node.input_values if source is not None)
    return True
