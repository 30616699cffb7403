"""Questions that the checks of many lowerings ask of a node."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from engine.errors import InputError
from engine.ir import Constant, ElementType, Node, Output, TensorType
from engine.ir.types import UNKNOWN
from engine.lowering.refusal import Refusal, RefusalCause
from engine.ops.spec import OperatorSpec

SHAPE_SOURCES = frozenset({"Shape", "Size"})
"""The operators whose results follow from the types of their inputs."""


def check_types(values: Iterable[Output | None], allowed: Collection[ElementType]) -> Refusal | None:
    """A refusal where a value, omitted ones aside, is not a tensor of an allowed element type and known rank."""
    for value in values:
        if value is None or is_left_out(value):
            continue
        if refused := check_tensor(value):
            return refused
        if value.element_type not in allowed:
            names = ", ".join(sorted(each.name for each in allowed))
            return Refusal(RefusalCause.ELEMENT_TYPE, f"{value.name} is {value.type}; expected one of {names}")
    return None


def is_left_out(value: Output) -> bool:
    """True for an optional output that the model leaves out, before others that it names: it has no type."""
    return value.type == UNKNOWN and not value.target_inputs


def check_tensor(value: Output) -> Refusal | None:
    """A refusal where a value is not a tensor of known rank."""
    if not isinstance(value.type, TensorType):
        return Refusal(RefusalCause.ELEMENT_TYPE, f"{value.name} is {value.type}; expected a tensor")
    if value.shape.rank.is_dynamic:
        return Refusal(RefusalCause.DYNAMIC_SHAPE, f"the rank of {value.name} is unknown")
    return None


def check_min_rank(value: Output, least: int) -> Refusal | None:
    """A refusal where a tensor of known rank has fewer dimensions than `least`."""
    rank = len(value.shape)
    if rank >= least:
        return None
    return Refusal(RefusalCause.RANK, f"{value.name} is {value.type}; expected rank {least} or more")


def check_constant(node: Node, *indices: int) -> Refusal | None:
    """A refusal where an input, unless omitted, is neither constant nor computed from shapes alone."""
    for index in indices:
        if node.has_input(index) and not is_known_when_bound(node.input_value(index)):
            name = node.input_value(index).name
            return Refusal(
                RefusalCause.CONSTANT, f"input {index} ({name}) is computed during an inference; expected a constant"
            )
    return None


def is_known_when_bound(value: Output) -> bool:
    """True for what is constant once the lengths of all inputs are known: constants, and what is made of shapes."""
    seen: set[Node] = set()
    stack = [value.node]
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Constant) or (node.op_type in SHAPE_SOURCES and not node.domain):
            continue
        if node.op_type == "Parameter" or node.bodies or not node.num_inputs:
            return False
        seen.add(node)
        stack.extend(source.node for source in node.input_values if source is not None)
    return True


def check_inference_dropout(spec: OperatorSpec) -> Refusal | None:
    """A refusal of a Dropout that may drop elements, or whose mask is read; any other is an Identity."""
    if spec.input(2) is not None:
        reason = "training_mode is given; expected a Dropout for inference, without it"
        return Refusal(RefusalCause.ATTRIBUTE, reason)
    if spec.is_read(1):
        return Refusal(RefusalCause.OP, "the mask of a Dropout is read; expected its first output alone")
    return None


def require_elements(node: Node, lengths: Iterable[int], wanted: str) -> None:
    """Raise `InputError` where the result has elements and one of the `lengths` that they are taken from is 0.

    All lengths of the node's values are known. `wanted` says what cannot be computed.
    """
    given, made = (list(value.shape.get_shape()) for value in (node.input_value(0), node.output(0)))
    if 0 in lengths and 0 not in made:
        raise InputError(
            f"{node.op_type} `{node.friendly_name}`: {wanted} needs elements, of which an input {given} leaves none; "
            f"the result is to be {made}"
        )


def first_refusal(*refusals: Refusal | None) -> Refusal | None:
    """The first that refuses."""
    return next((each for each in refusals if each is not None), None)
