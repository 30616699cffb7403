"""Chains [1x1 ->] depthwise [-> 1x1] of convolutions as one step, which runs by strips of rows."""

from __future__ import annotations

from typing import cast

from engine.native import Attribute
from engine.ops.conv import ConvSpec
from engine_cpu.item import Item
from engine_cpu.layout import Layout
from engine_cpu.lowering.conv_candidates import ConvCandidates, ConvProblem
from engine_cpu.lowering.conv_geometry import ConvGeometry, conv_geometry
from engine_cpu.lowering.conv_operands import packed_weights, padded_bias
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.segment import SegmentBuilder

_X, _W, _BIAS, _RESIDUAL = range(4)


def lower_chain(item: Item, b: SegmentBuilder) -> None:
    """One step for all nodes. Weights are in the same format as for separate steps, chosen by size alone."""
    specs = cast("tuple[ConvSpec, ...]", item.specs)
    buffers = [b.input(specs[0].node.input_value(_X), Layout.BLOCKED)]
    attributes: dict[str, Attribute] = {}
    for spec in specs:
        node = spec.node
        geometry = conv_geometry(spec, b.shape(node.input_value(_X)), b.shape(node.input_value(_W)))
        place = "filter" if geometry.is_depthwise else "project" if "filter_batch" in attributes else "expand"
        candidate = b.first(node, ConvCandidates(_problem(spec, geometry, b)))
        buffers.append(packed_weights(node, node.input_value(_W), geometry, candidate, b))
        if bias := spec.input(_BIAS):
            buffers.append(padded_bias(node, bias, b))
        attributes |= {f"{place}_{name}": value for name, value in candidate.attributes.items()}
    if residual := specs[-1].input(_RESIDUAL):
        buffers.append(b.input(residual, Layout.BLOCKED))
    # Not in place of the residual: it is often the chain's input, of which other workers still read rows.
    y = b.output(item.node.output(0), Layout.BLOCKED)
    b.step(item.node, "conv_strips_f32", buffers, [y], **attributes)


def _problem(spec: ConvSpec, geometry: ConvGeometry, b: SegmentBuilder) -> ConvProblem:
    return ConvProblem(
        geometry,
        activation_attributes(spec.activation),
        spec.input(_BIAS) is not None,
        spec.input(_RESIDUAL) is not None,
        Layout.BLOCKED,
        b.isa,
        b.threads,
        is_repeatable=b.is_repeatable,
    )
