"""Specs of normalizations and of Softmax.

If a case fails here, devices and the reference normalize over different elements.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine import ops
from engine.errors import OperatorSpecError
from engine.ir import Node, Parameter, PartialShape, f16, f32
from engine.ops.axis_lengths import AxisLengths
from engine.ops.internal import ChannelNormalization
from engine.ops.internal.channel_normalization import ChannelNormalizationSpec
from engine.ops.normalization import (
    BatchNormalizationSpec,
    GroupNormalizationSpec,
    LpNormalizationSpec,
    LrnSpec,
    MeanVarianceNormalizationSpec,
    RowNormalizationSpec,
)
from engine.ops.softmax import SoftmaxSpec
from engine.ops.spec import spec_of


def node(op_type: str, *shapes: list[int | None] | PartialShape, **attributes: Any) -> Node:
    return ops.create(op_type, [Parameter(f32, shape) for shape in shapes], attributes)


def test_rows() -> None:
    spec = RowNormalizationSpec.of(node("LayerNormalization", [2, 3, 4, 5], [4, 5], axis=-2))
    assert (spec.axis, spec.stash_type, spec.is_centred, spec.bias) == (2, f32, True, None)
    assert spec.epsilon == pytest.approx(1e-5)
    assert spec.at(spec.input_shapes()) == (6, (4, 5))
    spec = RowNormalizationSpec.of(node("RMSNormalization", [2, 3], [3], stash_type=10, epsilon=1))
    assert (spec.axis, spec.stash_type, spec.is_centred) == (1, f16, False)
    assert isinstance(spec.epsilon, float)
    channels = ChannelNormalization(*(Parameter(f32, shape) for shape in ([2, 3, 4], [3])))
    assert ChannelNormalizationSpec.of(channels).stash_type is f32


def test_an_axis_of_an_unknown_rank_is_as_stated() -> None:
    unknown = PartialShape.dynamic()
    assert RowNormalizationSpec.of(node("LayerNormalization", unknown, [3])).axis == -1
    assert SoftmaxSpec.of(node("Softmax", unknown)).axis == -1


def test_groups() -> None:
    spec = GroupNormalizationSpec.of(node("GroupNormalization", [2, 6, 4, 5], [6], [6], num_groups=3))
    lengths = spec.at(spec.input_shapes())
    assert (lengths.batch, lengths.channels, lengths.groups, lengths.per_group, lengths.pixels) == (2, 6, 3, 2, 20)
    spec = GroupNormalizationSpec.of(node("InstanceNormalization", [2, 6, 4], [6], [6]))
    lengths = spec.at(spec.input_shapes())
    assert (lengths.groups, lengths.per_group, lengths.pixels) == (6, 1, 4)
    spec = GroupNormalizationSpec.of(node("GroupNormalization", [2, None, 4], [None], [None], num_groups=4))
    with pytest.raises(OperatorSpecError, match="num_groups 4 does not divide the 6 channels"):
        spec.at([(2, 6, 4)])


def test_others() -> None:
    batch = BatchNormalizationSpec.of(node("BatchNormalization", [2, 3, 4], *[[3]] * 4))
    assert (batch.training_mode, batch.momentum) == (False, pytest.approx(0.9))
    assert LrnSpec.of(node("LRN", [2, 3, 4], size=4)).window == (1, 2)
    mean = MeanVarianceNormalizationSpec.of(node("MeanVarianceNormalization", [2, 3, 4, 5], axes=[-1, 2, 0]))
    assert mean.axes == (0, 2, 3)
    for op_type, spec_class in (
        ("Softmax", SoftmaxSpec),
        ("Hardmax", SoftmaxSpec),
        ("LpNormalization", LpNormalizationSpec),
    ):
        spec = spec_of(node(op_type, [2, 3, 4], axis=-2))
        assert isinstance(spec, spec_class)
        assert spec.axis == 1
        assert spec.at(spec.input_shapes()) == AxisLengths(2, 3, 4)


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes", "message"),
    [
        ("LayerNormalization", [[2, 3], [3]], {"axis": 2}, "axis is 2; allowed: -2..1, as the rank is 2"),
        ("LayerNormalization", [[2, 3], [3]], {"stash_type": 7}, r"stash_type is 7; allowed: 1 \(f32\), 10"),
        ("GroupNormalization", [[2, 4, 3], [4], [4]], {"num_groups": 0}, "num_groups is 0; allowed: 1 or more"),
        ("GroupNormalization", [[2], [4], [4]], {"num_groups": 1}, "input 0 has rank 1; allowed: 2 or more"),
        ("LpNormalization", [[2, 3]], {"p": 3}, "p is 3; allowed: 1 or 2"),
        ("LRN", [[2, 3, 4]], {"size": 0}, "size is 0; allowed: 1 or more"),
        ("MeanVarianceNormalization", [[2, 3, 4]], {}, "axes is 3; allowed: -3..2"),
        ("MeanVarianceNormalization", [[2, 3]], {"axes": [1, -1]}, "axes is .*; allowed: each axis once"),
        ("Hardmax", [[2, 3]], {"axis": -3}, "axis is -3; allowed: -2..1"),
        ("Softmax", [[]], {}, "axis is -1; allowed: none, as the rank is 0"),
    ],
)
def test_bad_attributes(op_type: str, shapes: list[list[int]], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        node(op_type, *shapes, **attributes)
