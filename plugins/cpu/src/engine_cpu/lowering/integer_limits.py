"""What the kernels that multiply integers do not compute: limits that are asked for of models without such products."""

from __future__ import annotations

import math
from typing import Final

from engine.ir import Output
from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.ops.conv import ConvSpec
from engine.ops.matmul import MatMulSpec
from engine_cpu.lowering.checks import MAX_TRANSPOSED_STRIDE, check_steps

MAX_TERMS: Final = (2**31 - 1) // (255 * 128)
"""Sums of up to this many products of u8 and i8 cannot overflow i32; nor do those of the weights alone."""
CHANNEL_BLOCK: Final = 16
"""The number of channels of a group must be a multiple of it, unless each channel is a group."""
MOST_JOINED: Final = 4
"""The number of groups that may be computed as one: weights of zero are multiplied, too."""
MOST_JOINED_TRANSPOSED: Final = 16
"""The same for transposed convolutions, of which f32 has no better kernel for few channels in a group."""
_MOST_SPREAD: Final = 21
"""The vectors of weights of a depthwise kernel of 16 channels whose horizontal dilation is filled with zeros."""
_MOST_SPAN: Final = 64
"""The rows that a depthwise kernel spans, which it keeps in a cache."""


def check_integer_conv(spec: ConvSpec, weights: Output) -> Refusal | None:
    """A refusal if no integer kernel computes a convolution with these weights."""
    shape = weights.shape.get_shape()
    outputs, inputs, *kernel = shape
    if math.prod(shape) == 0:
        return Refusal(RefusalCause.SHAPE, f"W is {weights.shape}; expected channels and a kernel")
    if spec.transposed:
        own = outputs // spec.group  # weights are [C, M / group, ...]
        count = joined_groups(spec.group, own, inputs)
        return first_refusal(
            check_steps(spec, MAX_TRANSPOSED_STRIDE),
            _check_joined(count, own, inputs, MOST_JOINED_TRANSPOSED),
            check_terms(math.prod((count * own, *kernel))),
        )
    is_depthwise = inputs == 1 and outputs == spec.group
    if spec.group > 1 and not is_depthwise:
        count = joined_groups(spec.group, inputs, outputs // spec.group)
        if refusal := _check_joined(count, inputs, outputs // spec.group, MOST_JOINED):
            return refusal
        inputs *= count
    if is_depthwise and spec.group > 1:
        window = spec.window(kernel)
        down, along = (1, *window.dilations)[-2:]
        rows, columns = (1, *kernel)[-2:]
        vectors = rows * (((columns - 1) * along + 7) // 4)
        if (down != 1 and (rows - 1) * down > _MOST_SPAN) or (along != 1 and vectors > _MOST_SPREAD):
            return Refusal(RefusalCause.ATTRIBUTE, f"depthwise with dilations {list(window.dilations)}, which is slow")
    return check_terms(math.prod((inputs, *kernel)))


def joined_groups(groups: int, inputs: int, outputs: int) -> int:
    """The number of adjacent groups that are computed as one, whose channels are whole blocks, or all of them."""
    for count in range(1, groups):
        if groups % count == 0 and count * inputs % CHANNEL_BLOCK == 0 and count * outputs % CHANNEL_BLOCK == 0:
            return count
    return groups


def _check_joined(count: int, inputs: int, outputs: int, most: int) -> Refusal | None:
    if count <= most:
        return None
    reason = (
        f"groups of {inputs} input and {outputs} output channels: {count} of them are whole blocks of {CHANNEL_BLOCK} "
        f"channels; expected at most {most}"
    )
    return Refusal(RefusalCause.ATTRIBUTE, reason)


def check_zero_points(spec: ConvSpec, weights: Output) -> Refusal | None:
    """A refusal if no integer kernel computes a convolution whose weights have zero points."""
    kinds = {"transposed": spec.transposed, "depthwise": spec.group > 1 and weights.shape.get_shape()[1] == 1}
    for kind, is_kind in kinds.items():
        if is_kind:
            return Refusal(
                RefusalCause.ATTRIBUTE,
                f"the weights have zero points; {kind} convolutions multiply symmetric ones only",
            )
    return None


def check_integer_product(spec: MatMulSpec, weights: Output) -> Refusal | None:
    """A refusal if no integer kernel computes a product with these weights."""
    shape, x = weights.shape.get_shape(), spec.node.input_value(0).shape
    if x.rank.is_dynamic or x.rank.min < 2 or len(shape) != 2:
        return Refusal(RefusalCause.RANK, f"A is {x}, B is {weights.shape}; expected rows and a matrix")
    return check_terms(shape[1 if spec.trans_b else 0])


def check_terms(count: int) -> Refusal | None:
    """A refusal if sums of so many products may overflow."""
    if count > MAX_TERMS:
        return Refusal(
            RefusalCause.SHAPE, f"sums of {count} products may overflow 32 bits; expected at most {MAX_TERMS}"
        )
    return None
