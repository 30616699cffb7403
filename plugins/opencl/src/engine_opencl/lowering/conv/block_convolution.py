"""Convolutions for CPUs: products of packed weights with the input, read through taps without im2col."""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine_opencl.lowering.conv.problem import Convolution
from engine_opencl.lowering.conv.winograd import Winograd, is_winograd
from engine_opencl.lowering.conv.winograd_rows import winograd_rows
from engine_opencl.lowering.matmul.block_product import BlockProduct, WindowedInput
from engine_opencl.lowering.matmul.block_shapes import Block, blocks_of, is_worth_measuring
from engine_opencl.lowering.matmul.blocks import MAX_TAPS, launch_block, launch_blocks
from engine_opencl.lowering.matmul.packing import Matrices
from engine_opencl.lowering.matmul.product import Epilogue
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder

_MIN_CHANNELS: Final = 48
"""Channels of input and result from which Winograd's products may save more than its transforms cost."""


def is_block_convolution(c: Convolution) -> bool:
    """Whether `block_convolution` supports it: the host rearranges the weights of a transposed one."""
    return (c.weights.weight is not None or not c.is_transposed) and c.taps <= MAX_TAPS


def block_convolution(b: LaunchPlanBuilder, c: Convolution, epilogue: Epilogue) -> None:
    """Launch a product for each part of a convolution."""
    g, maps = c.geometry, c.map_size
    for part in c.parts:
        if 0 in part.outputs:
            continue
        taps = list(itertools.product(*part.reach))
        k = c.channels * len(taps)
        weights = _chosen_taps(b, c, taps) if c.is_transposed else c.weights
        a = Matrices(
            weights, c.outputs, k, k, 1, (c.images, c.groups), (0, c.outputs * k if c.groups > 1 else 0),
            c.element_type,
        )  # fmt: skip
        windowed = WindowedInput(
            c.x, g.inputs, part.outputs, part.strides, _distances(taps), part.first, part.step, g.outputs,
            c.images * c.groups * c.channels * maps, (c.groups * c.channels * maps, c.channels * maps),
        )  # fmt: skip
        size, bias_steps = math.prod(g.outputs), (0, c.outputs)
        product = BlockProduct(a, windowed, c.result, size, epilogue, c.bias, c.residual, bias_steps)
        has_channels = min(c.channels, c.outputs) >= _MIN_CHANNELS
        if has_channels and is_worth_measuring(product) and is_winograd(b.facts, c):
            _launch_measured(b, c, epilogue, product)
        else:
            launch_blocks(b, product)


def _launch_measured(b: LaunchPlanBuilder, c: Convolution, epilogue: Epilogue, product: BlockProduct) -> None:
    """Choose between this and Winograd by measurement, since the faster one depends on caches."""
    default, *others = blocks_of(b.facts, product)

    def launch(builder: LaunchPlanBuilder, variant: Block | Winograd) -> None:
        if isinstance(variant, Winograd):
            winograd_rows(builder, c, epilogue)
        else:
            launch_block(builder, product, variant)

    variants: list[Block | Winograd] = [default, Winograd(), *others]
    b.choose(product.site(), variants, launch)


def _distances(taps: list[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(distance for _, distance in tap) for tap in taps) or ((0, 0, 0),)


def _chosen_taps(b: LaunchPlanBuilder, c: Convolution, taps: list[Any]) -> Buffer:
    """The weights [groups, C, M, taps] of a transposed convolution as [groups, M, C, chosen taps]."""
    (_, kh, kw), make = c.geometry.kernel, b.weights[c.weights.weight]
    chosen = tuple((i * kh + j) * kw + k for (i, _), (j, _), (k, _) in taps)

    def arranged() -> NDArray[Any]:
        data = make().reshape(c.groups, c.channels, c.outputs, c.taps)
        return np.ascontiguousarray(data[..., list(chosen)].transpose(0, 2, 1, 3))

    return b.weight(("taps", c.weights.weight, c.groups, chosen), arranged)
