"""The specs of sampling; values are compared in the operators' cases and with onnxruntime."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import OperatorSpecError
from engine.ir import Node, Parameter, f32
from engine.ops.sample import AffineGridSpec, CenterCropPadSpec, GridSampleSpec, RoiAlignSpec
from engine.ops.spec import spec_of


def node_of(op_type: str, *ranks: int | None, **attributes: Any) -> Node:
    inputs = [Parameter(f32, None if rank is None else [None] * rank) for rank in ranks]
    return Node(op_type, inputs, attributes, types=[inputs[0].output(0).type])


def test_defaults_are_onnx_s() -> None:
    grid = GridSampleSpec.of(node_of("GridSample", 4, 4))
    assert (grid.mode, grid.padding_mode, grid.align_corners, grid.taps) == ("linear", "zeros", False, 2)
    assert AffineGridSpec.of(node_of("AffineGrid", 3, 1, align_corners=1)).align_corners is True
    roi = RoiAlignSpec.of(node_of("RoiAlign", 4, 2, 1))
    assert (roi.mode, roi.coordinate_transformation_mode, roi.spatial_scale) == ("avg", "half_pixel", 1.0)
    assert (roi.output_height, roi.output_width, roi.sampling_ratio) == (1, 1, 0)
    assert CenterCropPadSpec.of(node_of("CenterCropPad", 3, 1)).axes == (0, 1, 2)
    assert CenterCropPadSpec.of(node_of("CenterCropPad", 3, 1, axes=[-1, 0])).axes == (2, 0)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (node_of("GridSample", 4, 4, mode="bilinear"), "attribute mode is 'bilinear'; allowed: nearest, linear, cubic"),
        (node_of("GridSample", 4, 4, padding_mode="wrap"), "attribute padding_mode is 'wrap'; allowed: zeros, border"),
        (node_of("GridSample", 2, 4), "input 0 has rank 2; allowed: 3 or more"),
        (node_of("RoiAlign", 4, 2, 1, mode="min"), "attribute mode is 'min'; allowed: avg, max"),
        (node_of("RoiAlign", 4, 2, 1, coordinate_transformation_mode="pixel"), "allowed: half_pixel"),
        (node_of("RoiAlign", 4, 2, 1, output_width=0), "attribute output_width is 0; allowed: 1 or more"),
        (node_of("RoiAlign", 4, 2, 1, sampling_ratio=-1), "attribute sampling_ratio is -1; allowed: 0 or more"),
        (node_of("RoiAlign", 4, 3, 1), "input 1 has rank 3; allowed: 2"),
        (node_of("CenterCropPad", 2, 1, axes=[2]), r"attribute axes is 2; allowed: -2\.\.1"),
    ],
    ids=str,
)
def test_bad_attributes_and_ranks_are_refused(node: Node, message: str) -> None:
    with pytest.raises(OperatorSpecError, match=f"{node.op_type}.*{message}"):
        spec_of(node)
