"""Checks of a node that many lowerings share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from engine.errors import InputError
from engine.ir import Constant, ElementType, Node, Output, Parameter, PartialShape, TensorType, f32
from engine.ir.element_type import undefined
from engine.ir.types import UNKNOWN
from engine.lowering.refusal import Refusal, RefusalCause
from engine.ops.slice import SplitSpec
from engine.ops.spec import OperatorSpec

BOUND: Final = "bound_value"
"""The rt_info key of inputs whose values are known when a plan is made; see `bind_inputs`."""
MAX_VALUES: Final = 256
SHAPE_SOURCES = frozenset({"Shape", "Size"})
"""The operators whose results depend only on the types of their inputs."""


def check_types(values: Iterable[Output | None], allowed: Collection[ElementType]) -> Refusal | None:
    """A refusal if a value that is not omitted is not a tensor of an allowed element type and known rank."""
    for value in values:
        if value is None or is_omitted(value):
            continue
        if refused := check_tensor(value):
            return refused
        if value.element_type not in allowed:
            names = ", ".join(sorted(each.name for each in allowed))
            return Refusal(RefusalCause.ELEMENT_TYPE, f"{value.name} is {value.type}; expected one of {names}")
    return None


def is_omitted(value: Output) -> bool:
    """True for an omitted optional output, which has no type; outputs after it may be present."""
    value_type = value.type
    if isinstance(value_type, TensorType) and value_type.element_type is not undefined:
        return False  # of almost all values
    return value_type == UNKNOWN and not value.num_consumers


def check_tensor(value: Output) -> Refusal | None:
    """A refusal if a value is not a tensor of known rank."""
    value_type = value.type
    if not isinstance(value_type, TensorType):
        return Refusal(RefusalCause.ELEMENT_TYPE, f"{value.name} is {value_type}; expected a tensor")
    if not value_type.shape.is_static and value_type.shape.rank.is_dynamic:
        return Refusal(RefusalCause.DYNAMIC_SHAPE, f"the rank of {value.name} is unknown")
    return None


def check_min_rank(value: Output, least: int) -> Refusal | None:
    """A refusal if a tensor of known rank has fewer dimensions than `least`."""
    rank = len(value.shape)
    if rank >= least:
        return None
    return Refusal(RefusalCause.RANK, f"{value.name} is {value.type}; expected rank {least} or more")


def check_constant(node: Node, *indices: int) -> Refusal | None:
    """A refusal if an input is present and neither constant nor computed only from shapes."""
    for index in indices:
        if node.has_input(index) and not is_known_when_bound(node.input_value(index)):
            name = node.input_value(index).name
            return Refusal(
                RefusalCause.CONSTANT, f"input {index} ({name}) is computed at run time; expected a constant"
            )
    return None


def is_known_when_bound(value: Output) -> bool:
    """True for values that are constant when a plan is made: constants, and what is computed from shapes and from bound
    inputs (`bind_inputs`)."""
    seen: set[Node] = set()
    stack = [value.node]
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Constant) or (node.op_type in SHAPE_SOURCES and not node.domain):
            continue
        if isinstance(node, Parameter) and node.rt_info.get(BOUND):
            continue
        if isinstance(node, Parameter) or node.bodies or not node.num_inputs:
            return False
        seen.add(node)
        stack.extend(source.node for source in node.input_values if source is not None)
    return True


def is_short(shape: PartialShape) -> bool:
    """Whether plans may be made for the values of a tensor: a scalar, or a vector of at most `MAX_VALUES`."""
    if shape.rank.is_dynamic or len(shape) > 1:
        return False
    return not shape.is_static or shape.size() <= MAX_VALUES


def check_stash_type(stash_type: ElementType | None) -> Refusal | None:
    """A refusal unless the statistics of a normalization are computed in f32; None is the type of the input."""
    if stash_type in (None, f32):
        return None
    return Refusal(RefusalCause.ATTRIBUTE, f"stash_type is {stash_type.name}; kernels compute in f32")


def check_inference_dropout(spec: OperatorSpec) -> Refusal | None:
    """A refusal of a Dropout that may drop elements, or whose mask is used; any other Dropout is an Identity."""
    if spec.input(2) is not None:
        reason = "training_mode is given; expected it to be omitted, as in inference"
        return Refusal(RefusalCause.ATTRIBUTE, reason)
    if spec.is_read(1):
        return Refusal(RefusalCause.OP, "the mask output of Dropout is used; only its first output is supported")
    return None


def require_elements(node: Node, lengths: Iterable[int], wanted: str) -> None:
    """Raise `InputError` if the result has elements but one of the `lengths` that they are computed from is 0.

    All shapes of the node's values are known. `wanted` names the operation that would be undefined, for the message.
    """
    made = list(node.output(0).shape.get_shape())
    if 0 in lengths and 0 not in made:
        given = ", ".join(str(list(value.shape.get_shape())) for value in node.input_values if value is not None)
        raise InputError(
            f"{node.op_type} `{node.friendly_name}`: {wanted} of no elements is undefined; "
            f"the inputs have the shapes {given}, the result {made}"
        )


def check_parts(spec: SplitSpec) -> Refusal | None:
    """A refusal if the operator does not allow the parts: the evaluation reports that if it reaches the node."""
    shape = spec.node.input_value(0).shape
    if spec.node.has_input(1) or shape.rank.is_dynamic:
        return None
    length = shape[spec.axis]
    if length.is_dynamic or spec.has_parts(length.min):
        return None
    return Refusal(RefusalCause.ATTRIBUTE, f"length {length} cannot be divided into {spec.node.num_outputs} parts")


def first_refusal(*refusals: Refusal | None) -> Refusal | None:
    """The first refusal; None if there is none."""
    for each in refusals:  # a generator costs three times as much
        if each is not None:
            return each
    return None
