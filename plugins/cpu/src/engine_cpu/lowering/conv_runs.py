"""Pointwise convolutions of PLAIN maps of three axes, by runs of pixels whose blocks stay in a cache.

Convolutions of three axes read and write PLAIN maps (conv_slices.py). A pointwise one between them would reorder whole
maps, and so write and read them once more. The blocks of a run are written, read and reordered in a cache. With few
outputs, of which blocks would be mostly empty, it is a product of matrices.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from engine.ir import Constant
from engine.native import Attribute
from engine.ops.conv import ConvSpec
from engine_cpu.layout import Layout, LayoutOption, static_shape
from engine_cpu.lowering.conv_candidates import ConvCandidates, ConvProblem, estimated_seconds
from engine_cpu.lowering.conv_geometry import ConvGeometry
from engine_cpu.lowering.conv_operands import packed_weights, padded_bias
from engine_cpu.lowering.conv_slices import Maps, copied_in, copied_out
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.strided import Copy, copy_step
from engine_cpu.segment import SegmentBuilder

_RUN_BYTES: Final = 512 << 10
"""The bytes of a run's blocks: half of a usual L2 cache."""
_MAX_RUNS: Final = 256
_MIN_PIXELS: Final = 112
"""Several tiles of pixels for each worker."""
_FEW_OUTPUTS: Final = 8
_X, _W, _BIAS, _RESIDUAL = range(4)


def runs_option(spec: ConvSpec) -> LayoutOption | None:
    """The option to read and write PLAIN maps, unless it is not for this convolution."""
    node = spec.node
    x, w = node.input_value(_X), node.input_value(_W)
    if len(x.shape) != 5 or spec.transposed or spec.group > 1 or not isinstance(w.node, Constant):
        return None
    shape, weights = static_shape(x), static_shape(w)
    window = spec.at(shape, weights)
    is_pointwise = {*window.kernel, *window.strides} == {1} and not any((*window.pads_begin, *window.pads_end))
    is_few = weights[0] <= _FEW_OUTPUTS and math.prod(shape) > 0
    if not is_pointwise or (not is_few and _runs(shape, weights) is None):
        return None
    # A reorder reads and writes all bytes in memory; here, one of the two is in a cache.
    cost = 4.0 * shape[0] * math.prod(shape[2:]) * (weights[0] + weights[1])
    return LayoutOption((Layout.PLAIN,) * node.num_inputs, (Layout.PLAIN,), cost, "f32")


def lower_runs(spec: ConvSpec, b: SegmentBuilder) -> None:
    """Add the steps of a convolution that has the option."""
    node, bias, residual = spec.node, spec.input(_BIAS), spec.input(_RESIDUAL)
    shape, w = b.shape(node.input_value(_X)), b.shape(node.input_value(_W))
    if w[0] <= _FEW_OUTPUTS:
        _lower_product(spec, b)
        return
    runs = _runs(shape, w)
    assert runs is not None
    pixels = math.prod(shape[2:]) // runs
    x_maps, y_maps = Maps(w[1], runs, pixels), Maps(w[0], runs, pixels)
    geometry = ConvGeometry(
        1, 1, w[1], w[0], (1, pixels), (1, pixels), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)
    )  # fmt: skip
    problem = ConvProblem(
        geometry,
        activation_attributes(spec.activation),
        bias is not None,
        residual is not None,
        Layout.BLOCKED,
        b.isa,
        b.threads,
        is_direct=b.is_direct,
        l2_bytes=b.l2_bytes,
        is_repeatable=b.is_repeatable,
    )
    candidate = b.choose(node, problem.key(), ConvCandidates(problem), estimated_seconds(problem))
    shared = [packed_weights(node, node.input_value(_W), geometry, candidate, b)]
    shared += [] if bias is None else [padded_bias(node, bias, b)]
    x, y = b.input(node.input_value(_X)), b.output(node.output(0))
    added = None if residual is None else b.input(residual)
    for image in range(shape[0]):
        for run in range(runs):
            source = copied_in(node, b, x, x_maps, image, run, 1)
            result = b.temporary(y_maps.nbytes)
            operands = [source, *shared]
            if added is not None:
                copies = [Copy(added, elements, result, place) for elements, place in y_maps.pairs(image, run, 1)]
                copy_step(b, node, 4, copies)
                operands.append(result)
            b.step(node, candidate.kernel, operands, [result], **candidate.attributes)
            copied_out(node, b, result, y, y_maps, image, range(run, run + 1))


def _lower_product(spec: ConvSpec, b: SegmentBuilder) -> None:
    """Add the product W X for each image; a bias for each row follows in a step over the few outputs."""
    node, bias, residual = spec.node, spec.input(_BIAS), spec.input(_RESIDUAL)
    shape, outputs = b.shape(node.input_value(_X)), b.shape(node.output(0))[1]
    channels, pixels, activation = shape[1], math.prod(shape[2:]), activation_attributes(spec.activation)
    operands = [b.input(node.input_value(_W)), b.input(node.input_value(_X))]
    attributes: dict[str, Attribute] = {
        "m": outputs, "n": pixels, "k": channels, "batch": [shape[0]], "packed": 0, "a_batch": [0],
        "b_batch": [channels * pixels], "c_batch": [outputs * pixels],
    }  # fmt: skip
    if residual is not None:
        operands.append(b.input(residual))
        attributes |= {"residual": 1, "residual_batch": [outputs * pixels]}
    y = b.output(node.output(0))
    b.step(node, "gemm_f32", operands, [y], **attributes, **(activation if bias is None else {}))
    if bias is not None:
        ones = b.constant(np.ones(outputs, np.float32))
        sizes = {"batch": shape[0], "channels": outputs, "pixels": pixels}
        b.step(node, "scale_shift_f32", [y, ones, b.input(bias)], [y], **sizes, **activation)


def _runs(x: tuple[int, ...], w: tuple[int, ...]) -> int | None:
    """The number of equal runs of an image's pixels whose blocks fit the cache, if there is one."""
    pixels = math.prod(x[2:])
    each = sum(Maps(channels, 1, 1).nbytes for channels in w[:2])
    least = -(-pixels * each // _RUN_BYTES)
    for runs in range(max(1, least), 4 * least + 1):
        if pixels % runs == 0:
            fits = pixels // runs >= _MIN_PIXELS and 0 < x[0] * runs <= _MAX_RUNS
            return runs if fits else None
    return None
