"""What the kernels that multiply integers do not compute: limits that are asked for of models without such products."""

from __future__ import annotations

import math
from typing import Final

from engine.ir import Output
from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.ops.conv import ConvSpec
from engine.ops.matmul import MatMulSpec
from engine_cpu.lowering.checks import MAX_TRANSPOSED_STRIDE, check_steps
from engine_cpu.lowering.integer_groups import CHANNEL_BLOCK, joined_groups

MAX_TERMS: Final = (2**31 - 1) // (255 * 128)
"""Sums of up to this many products of u8 and i8 cannot overflow i32; nor do those of the weights alone."""
MOST_JOINED: Final = 4
"""The number of groups that may be computed as one: weights of zero are multiplied, too."""
_MOST_SPREAD: Final = 21
"""The vectors of weights of a depthwise kernel of 16 channels whose dilations are filled with zeros."""


def check_integer_conv(spec: ConvSpec, weights: Output) -> Refusal | None:
    """A refusal if no integer kernel computes a convolution with these weights."""
    shape = weights.shape.get_shape()
    outputs, inputs, *kernel = shape
    if math.prod(shape) == 0:
        return Refusal(RefusalCause.SHAPE, f"W is {weights.shape}; expected channels and a kernel")
    if spec.transposed:
        if spec.group > 1:
            return Refusal(RefusalCause.ATTRIBUTE, "there is no integer kernel for transposed convolutions in groups")
        return first_refusal(check_steps(spec, MAX_TRANSPOSED_STRIDE), check_terms(math.prod((outputs, *kernel))))
    is_depthwise = inputs == 1 and outputs == spec.group
    if spec.group > 1 and not is_depthwise:
        count = joined_groups(spec.group, inputs, outputs // spec.group)
        if count > MOST_JOINED:
            return Refusal(
                RefusalCause.ATTRIBUTE,
                f"groups of {inputs} input and {outputs // spec.group} output channels: {count} of them are whole "
                f"blocks of {CHANNEL_BLOCK} channels; expected at most {MOST_JOINED}",
            )
        inputs *= count
    if is_depthwise and spec.group > 1:
        window = spec.window(kernel)
        *heights, width = ((k - 1) * d + 1 for k, d in zip(kernel, window.dilations, strict=True))
        is_dilated = any(d != 1 and k != 1 for k, d in zip(kernel, window.dilations, strict=True))
        if is_dilated and math.prod(heights) * ((width + 6) // 4) > _MOST_SPREAD:
            return Refusal(RefusalCause.ATTRIBUTE, f"depthwise with dilations {list(window.dilations)}, which is slow")
    return check_terms(math.prod((inputs, *kernel)))


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
