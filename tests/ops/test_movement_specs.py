"""The specs of operators that move elements: Slice, Split, Concat, Tile, Pad, Transpose, Reshape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import OperatorSpecError, TypeInferenceError
from engine.ir import Node, Parameter, f32
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.internal.channel_shuffle import ChannelShuffle
from engine.ops.pad import PadSpec
from engine.ops.reshape import FlattenSpec, ReshapeSpec
from engine.ops.slice import AxisSlice, ConcatSpec, SliceSpec, SplitSpec, TileSpec
from engine.ops.spec import OperatorSpec, spec_of
from engine.ops.transpose import DepthToSpaceSpec, TransposeSpec


def node_of(op_type: str, *ranks: int | None, outputs: int = 1, domain: str = "", **attributes: Any) -> Node:
    inputs = [Parameter(f32, None if rank is None else [None] * rank) for rank in ranks]
    return Node(op_type, inputs, attributes, domain=domain, types=[inputs[0].output(0).type] * outputs)


def spec(cls: type[OperatorSpec], *ranks: int | None, outputs: int = 1, op_type: str = "", **attributes: Any) -> Any:
    return cls.of(node_of(op_type or cls.__name__.removesuffix("Spec"), *ranks, outputs=outputs, **attributes))


def integers(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


# -- what attributes say -----------------------------------------------------------------------------------


def test_axes_are_counted_from_the_front_where_a_rank_is_known() -> None:
    assert spec(ConcatSpec, None, 4, axis=-1).axis == 3
    assert spec(ConcatSpec, None, None, axis=-1).axis == -1
    assert (spec(SplitSpec, 3, axis=-2).axis, spec(SplitSpec, 3).axis) == (1, 0)
    assert (spec(FlattenSpec, 3).axis, spec(FlattenSpec, 3, axis=-1).axis, spec(FlattenSpec, 3, axis=3).axis) == (
        1,
        2,
        3,
    )
    assert spec(TransposeSpec, 3).perm == (2, 1, 0)
    assert spec(TransposeSpec, None).perm is None
    assert spec(TransposeSpec, None).order(2) == (1, 0)


def test_defaults_are_onnx_s() -> None:
    assert spec(PadSpec, 2).mode == "constant"
    assert spec(ReshapeSpec, 2, 1).allowzero is False
    assert spec(DepthToSpaceSpec, 4, blocksize=2).mode == "DCR"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (node_of("Concat", 2, axis=2), r"attribute axis is 2; allowed: -2\.\.1, as the rank is 2"),
        (node_of("Concat", 0, axis=0), "attribute axis is 0; allowed: none, as the rank is 0"),
        (node_of("Split", 2, axis=-3), r"attribute axis is -3; allowed: -2\.\.1"),
        (node_of("Split", 2, num_outputs=0), "attribute num_outputs is 0; allowed: 1 or more"),
        (node_of("Flatten", 2, axis=3), r"attribute axis is 3; allowed: -2\.\.2"),
        (node_of("Pad", 2, mode="mirror"), "attribute mode is 'mirror'; allowed: constant, edge, reflect, wrap"),
        (node_of("Transpose", 2, perm=[0, 0]), r"attribute perm is \[0, 0\]; allowed: a permutation of the 2 axes"),
        (node_of("Transpose", None, perm=[1, 2]), r"attribute perm is \[1, 2\]; allowed: a permutation of the axes"),
        (node_of("DepthToSpace", 4, blocksize=0), "attribute blocksize is 0; allowed: 1 or more"),
        (node_of("DepthToSpace", 4, blocksize=2, mode="RCD"), "attribute mode is 'RCD'; allowed: DCR, CRD"),
        (node_of("SpaceToDepth", 3, blocksize=2), "input 0 has rank 3; allowed: 4"),
        (node_of("ChannelShuffle", 1, domain=INTERNAL_DOMAIN), "input 0 has rank 1; allowed: 2 or more"),
        (node_of("ChannelShuffle", 4, domain=INTERNAL_DOMAIN, groups=0), "attribute groups is 0; allowed: 1 or more"),
    ],
    ids=str,
)
def test_bad_attributes_and_ranks_are_refused(node: Node, message: str) -> None:
    with pytest.raises(OperatorSpecError, match=f"{node.op_type}.*{message}"):
        spec_of(node)


def test_channels_that_groups_do_not_divide_are_refused() -> None:
    """Also after other channels in as many groups: the results kept for similar nodes do not include the length."""
    ChannelShuffle(Parameter(f32, [None, 8, None]), groups=4)
    with pytest.raises(TypeInferenceError, match="attribute groups is 4; allowed: a divisor of the 6 channels"):
        ChannelShuffle(Parameter(f32, [None, 6, None]), groups=4)


# -- what lengths say --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_slices_are_those_of_numpy(seed: int) -> None:
    """Also backwards, from and to places outside; a backward start before the first element is that element."""
    draw = np.random.default_rng(seed)
    start, end, step = (int(n) for n in draw.integers(-9, 10, 3))
    step = step or 1
    (part,) = spec(SliceSpec, 1, 1, 1).at((5,), *map(integers, (start, end, 0, step)))
    expected = np.arange(5)[max(start, -5) if step < 0 else start : end : step]
    np.testing.assert_array_equal(part.start + np.arange(part.count) * part.step, expected)


def test_slices_of_named_axes() -> None:
    far = np.iinfo(np.int64).max
    found = spec(SliceSpec, 3, 1, 1).at(
        (4, 5, 6), integers(1, -1), integers(far, -far), integers(-1, 0), integers(2, -1)
    )
    assert found == (AxisSlice(2, 1, 3, 2), AxisSlice(0, 3, 4, -1))


def test_parts_of_splits_and_places_in_concatenations() -> None:
    assert [each.count for each in spec(SplitSpec, 2, outputs=3).at((7, 2))] == [3, 3, 1]
    assert [each.count for each in spec(SplitSpec, 2, outputs=4).at((3, 2))] == [1, 1, 1, 0]
    with pytest.raises(OperatorSpecError, match="4 parts of length 2 would be 1 each, and the last one negative"):
        spec(SplitSpec, 2, outputs=4).at((2, 2))
    parts = spec(SplitSpec, 2, outputs=3, axis=-1).at((2, 7), integers(3, 0, 4))
    assert parts == (AxisSlice(1, 0, 3), AxisSlice(1, 3, 0), AxisSlice(1, 3, 4))
    assert spec(ConcatSpec, 2, 2, 2, axis=1).at([3, 0, 4]) == parts


def test_pads_of_named_axes_and_negative_ones() -> None:
    found = spec(PadSpec, 3).at((4, 5, 6), integers(1, -2, 3, 0), integers(-1, 0))
    assert (found.before, found.after) == ((-2, 0, 1), (0, 0, 3))
    assert (found.kept, found.shape) == ((2, 5, 6), (2, 5, 10))


@pytest.mark.parametrize("op_type", ["DepthToSpace", "SpaceToDepth"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_are_moved_back(op_type: str, mode: str) -> None:
    x = np.arange(2 * 8 * 4 * 6).reshape(2, 8, 4, 6)
    other = {"DepthToSpace": "SpaceToDepth", "SpaceToDepth": "DepthToSpace"}[op_type]
    there = spec(DepthToSpaceSpec, 4, op_type=op_type, blocksize=2, mode=mode).at(x.shape)
    moved = x.reshape(there.split).transpose(there.order)
    shape = (2, 2, 8, 12) if op_type == "DepthToSpace" else (2, 32, 2, 3)
    back = spec(DepthToSpaceSpec, 4, op_type=other, blocksize=2, mode=mode).at(shape)
    np.testing.assert_array_equal(moved.reshape(back.split).transpose(back.order).reshape(x.shape), x)


def test_lengths_of_other_operators() -> None:
    assert spec(TileSpec, 2, 1).at((2, 3), integers(4, 0)) == (4, 0)
    assert spec(FlattenSpec, 3, axis=-1).at((2, 3, 4)) == (6, 4)
    assert spec(FlattenSpec, None, axis=3).at((2, 3, 4)) == (24, 1)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (lambda: spec(SliceSpec, 2).at((4, 5), integers(0), integers(1, 2)), "1 starts, 2 ends, 1 axes and 1 steps"),
        (lambda: spec(SliceSpec, 2).at((4, 5), integers(0), integers(1), integers(2)), r"input axes is 2"),
        (lambda: spec(SliceSpec, 1).at((4,), integers(0), integers(1), None, integers(0)), r"steps are \[0\]"),
        (lambda: spec(SplitSpec, 1, outputs=2).at((4,), integers(1, 2)), r"sizes \[1, 2\] do not divide length 4"),
        (lambda: spec(TileSpec, 2).at((4, 5), integers(2)), "1 repeats do not fit 2 axes"),
        (lambda: spec(TileSpec, 1).at((4,), integers(-1)), r"repeats are \[-1\]; allowed: 0 or more"),
        (lambda: spec(PadSpec, 2).at((4, 5), integers(1, 2)), "2 pads do not fit 2 axes"),
        (lambda: spec(PadSpec, 1).at((4,), integers(-3, -2)), "remove more than an input"),
        (lambda: spec(DepthToSpaceSpec, 4, blocksize=2).at((1, 6, 4, 4)), "attribute blocksize is 2"),
        (lambda: spec(DepthToSpaceSpec, 4, op_type="SpaceToDepth", blocksize=2).at((1, 6, 4, 5)), "blocksize is 2"),
    ],
)
def test_what_does_not_fit_the_lengths_is_refused(at: Any, message: str) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        at()
