"""Questions that the checks of many lowerings ask of a node."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from engine.ir import Constant, ElementType, Node, Output, TensorType
from engine.ir.element_type import f32
from engine_cpu.lowering.registry import Refusal

F32 = frozenset({f32})

SHAPE_SOURCES = frozenset({"Shape", "Size"})
"""The operators whose results follow from the types of their inputs."""


def check_types(node: Node, values: Iterable[Output | None], allowed: Collection[ElementType] = F32) -> Refusal | None:
    """A refusal where a value, omitted ones aside, is no tensor of an allowed element type and known rank."""
    for value in values:
        if value is None:
            continue
        if not isinstance(value.type, TensorType):
            return Refusal("element type", f"{value.name} is {value.type}; expected a tensor")
        if value.element_type not in allowed:
            names = ", ".join(sorted(each.name for each in allowed))
            return Refusal("element type", f"{value.name} is {value.type}; expected one of {names}")
        if value.shape.rank.is_dynamic:
            return Refusal("dynamic shape", f"the rank of {value.name} is unknown")
    return None


def check_f32(node: Node) -> Refusal | None:
    """A refusal unless all inputs and outputs are f32 tensors of known rank."""
    return check_types(node, (*node.input_values, *node.outputs))


def check_constant(node: Node, *indices: int) -> Refusal | None:
    """A refusal where an input, unless omitted, is neither constant nor computed from shapes alone."""
    for index in indices:
        if not node.has_input(index):
            continue
        value = node.input_value(index)
        if not is_known_when_bound(value):
            return Refusal("constant", f"input {index} ({value.name}) is computed at run time; expected a constant")
    return None


def is_known_when_bound(value: Output) -> bool:
    """True for what is constant once the lengths of all inputs are known: constants, and what is made of shapes."""
    seen: set[Node] = set()
    stack = [value.node]
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Constant) or node.op_type in SHAPE_SOURCES:
            continue
        if node.op_type == "Parameter" or node.bodies or not node.num_inputs:
            return False
        seen.add(node)
        stack.extend(source.node for source in node.input_values if source is not None)
    return True


def first(*refusals: Refusal | None) -> Refusal | None:
    """The first that refuses."""
    return next((each for each in refusals if each is not None), None)
