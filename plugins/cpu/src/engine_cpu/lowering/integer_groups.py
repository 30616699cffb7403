"""Convolutions of integers whose groups or dilations no kernel has, as ones that kernels have: weights get zeros."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine_cpu.lowering.conv_geometry import ConvGeometry
from engine_cpu.lowering.integer_limits import joined_groups

Array = np.ndarray[Any, np.dtype[Any]]


def computed_geometry(given: ConvGeometry) -> ConvGeometry:
    """The convolution that a kernel computes in place of `given`, with weights of zero between and beside its own."""
    if given.is_depthwise and not given.transposed:
        width = (given.kernel[1] - 1) * given.dilations[1] + 1
        return replace(given, kernel=(given.kernel[0], width), dilations=(given.dilations[0], 1))
    if given.has_whole_blocks:
        return given
    return replace(given, groups=given.groups // joined_groups(given.groups, given.in_group, given.out_group))


def computed_weights(weights: Array, zero: Array, given: ConvGeometry, computed: ConvGeometry) -> Array:
    """The weights of `computed`, [M, C / group, ...], or [C, M / group, ...] if it is transposed.

    `zero`: the number that stands for zero, one or [M]; one if it is transposed.
    """
    weights = weights.reshape(*weights.shape[:2], *given.kernel)
    fill = np.broadcast_to(zero.astype(weights.dtype).reshape(-1, 1, 1, 1), (len(weights), 1, 1, 1))
    if computed.kernel != given.kernel:
        spread = np.empty((*weights.shape[:2], *computed.kernel), weights.dtype)
        spread[:] = fill
        spread[..., :: given.dilations[1]] = weights
        return spread
    count, (channels, others) = given.groups // computed.groups, (given.out_group, given.in_group)
    if given.transposed:
        channels, others = others, channels
    wide = np.empty((len(weights), count * others, *given.kernel), weights.dtype)
    wide[:] = fill
    for group in range(given.groups):
        own = slice(group * channels, (group + 1) * channels)
        wide[own, group % count * others : (group % count + 1) * others] = weights[own]
    return wide
