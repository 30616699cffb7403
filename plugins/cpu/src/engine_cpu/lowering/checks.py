"""Checks of a node that many lowerings share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from engine.ir import Node, Output
from engine.ir.element_type import f32
from engine.lowering import Refusal, RefusalCause, check_types, is_known_when_bound
from engine.lowering.checks import MAX_VALUES, is_short
from engine.ops.windows import WindowSpec

F32: Final = frozenset({f32})
MAX_STEP: Final = 4096
"""The largest stride and dilation that window kernels support."""
MAX_TRANSPOSED_STRIDE: Final = 64
"""The largest stride of a transposed convolution."""


def check_f32(node: Node) -> Refusal | None:
    """A refusal unless all inputs and outputs are f32 tensors of known rank."""
    return check_types((*node.input_values, *node.outputs), F32)


def check_values(node: Node, indices: Iterable[int]) -> Refusal | None:
    """A refusal if the value of an input is computed at run time, and is not a scalar or a short vector.

    Plans are made for the values of these inputs: a node with computed ones is lowered when they are known, and again
    for other values.
    """
    for index in indices:
        if not node.has_input(index):
            continue
        value = node.input_value(index)
        if is_known_when_bound(value):
            continue
        if not is_short(value.shape):
            return Refusal(
                RefusalCause.CONSTANT,
                f"input {index} ({value.name}) is {value.type}, computed at run time; expected a constant, or at most "
                f"{MAX_VALUES} elements in one dimension",
            )
    return None


def check_spatial_rank(value: Output) -> Refusal | None:
    """A refusal unless `value` is [N, C, W] or [N, C, H, W]."""
    axes = len(value.shape) - 2
    if axes not in (1, 2):
        return Refusal(RefusalCause.RANK, f"{value.name} has {axes} spatial dimensions; expected 1 or 2")
    return None


def check_steps(spec: WindowSpec, max_stride: int = MAX_STEP) -> Refusal | None:
    """A refusal if strides or dilations are larger than kernels support."""
    for name, values, largest in (("strides", spec.strides, max_stride), ("dilations", spec.dilations, MAX_STEP)):
        if max(values, default=1) > largest:
            return Refusal(RefusalCause.ATTRIBUTE, f"{name} is {list(values)}; expected at most {largest}")
    return None
