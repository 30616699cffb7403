"""Operators that move elements as steps, in each layout that they offer, against their evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from engine_cpu.item import Item
from engine_cpu.layout import Layout
from engine_cpu.lowering import decisions
from engine_cpu.segment import LoweredSegment, lower_segment
from engine_cpu.tuning import CpuTuner
from engine_cpu.weights import WeightStore

from engine import Core, ops
from engine.errors import InputError
from engine.ir import Constant, ElementType, Model, Node, Output, Parameter, boolean, f16, f32, f64, i8, i32, i64
from engine.native import Context, cpu_features, default_isa, isas_within
from engine.ops import evaluate_model
from engine.ops.internal import ChannelShuffle
from engine.ops.reference import evaluate

Array = np.ndarray[Any, np.dtype[Any]]
SUM_OF_TAPS = 16 * float(np.finfo(np.float32).eps)
ISAS = isas_within(cpu_features().isa)


def values(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 100).astype(dtype)


def x_of(*shape: int | str, element_type: ElementType = f32) -> Parameter:
    return Parameter(element_type, list(shape), "x")


def integers(*numbers: int) -> Constant:
    return Constant(np.array(numbers, np.int64), i64)


def segments(node: Node, isa: str | None = None) -> list[LoweredSegment]:
    """The node as a plan, in each of its layouts."""
    decision = decisions()[node]
    item = Item.of(decision.spec, decision.lowering)
    sources = [v for v in node.input_values if v is not None and isinstance(v.node, Parameter)]
    store = WeightStore(isa or default_isa())
    return [
        lower_segment([item], {item: option}, list(dict.fromkeys(sources)), node.outputs, store, CpuTuner(2))
        for option in decision.lowering.layouts(decision.spec)
        if option.precision != "bf16"
    ]


def run(segment: LoweredSegment, inputs: Sequence[Array]) -> list[Array]:
    outputs = [np.full(v.shape.get_shape(), 77, v.element_type.numpy) for v in segment.outputs]
    Context(segment.plan).run(list(inputs), outputs)
    return outputs


def check(node: Node, *inputs: Array, layouts: int = 1, tolerance: float = 0.0, isa: str | None = None) -> None:
    """Every layout computes what the evaluator does, and there are so many."""
    given = iter(inputs)
    known: dict[Node, Array] = {}
    for value in node.input_values:
        if value is not None and value.node not in known:
            known[value.node] = value.node.data if isinstance(value.node, Constant) else next(given)
    expected = evaluate(node, [None if value is None else known[value.node] for value in node.input_values])
    built = segments(node, isa)
    assert len(built) == layouts
    for segment in built:
        for got, wanted in zip(run(segment, inputs), expected, strict=True):
            if tolerance:
                np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * np.abs(inputs[0]).max())
            else:
                np.testing.assert_array_equal(got, wanted)


def steps(node: Node, layout: int = 0) -> list[str]:
    """The kernels that move something between a network's input and its output."""
    return [step.kernel for step in segments(node)[layout].plan.steps]


@pytest.mark.parametrize("element_type", [boolean, i8, f16, f32, i64, f64], ids=lambda each: each.name)
def test_transpose_of_every_element_size(element_type: ElementType) -> None:
    x = x_of(2, 5, 7, 9, element_type=element_type)
    for order in ([0, 2, 1, 3], [3, 2, 1, 0], [0, 2, 3, 1], None):
        node = ops.Transpose(x) if order is None else ops.Transpose(x, perm=order)
        check(node, values(2, 5, 7, 9, dtype=element_type.numpy), layouts=3 if element_type is f32 else 1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels", [3, 16, 20, 40])
def test_transpose_from_and_to_blocked_maps(channels: int, isa: str) -> None:
    x = values(2, channels, 6, 11)
    check(ops.Transpose(x_of(*x.shape), perm=[0, 2, 3, 1]), x, layouts=3, isa=isa)
    check(ops.Transpose(x_of(*x.shape), perm=[0, 3, 1, 2]), x, layouts=3, isa=isa)
    check(ops.Transpose(x_of(*x.shape), perm=[0, 1, 3, 2]), x, layouts=4, isa=isa)


def test_a_transpose_of_unit_axes_is_no_step() -> None:
    node = ops.Transpose(x_of(1, 8, 1, 4), perm=[2, 1, 0, 3])
    assert steps(node) == ["copy"]  # a network's output is not its input
    check(node, values(1, 8, 1, 4))


def test_reshapes_are_no_steps() -> None:
    x = x_of(2, 20, 3, 4)
    for node in (
        ops.Reshape(x, integers(2, 240)),
        ops.Flatten(x),
        ops.Unsqueeze(x, integers(0)),
        ops.Squeeze(x_of(2, 20, 1, 4), integers(2)),
    ):
        assert steps(node) == ["copy"]
    check(ops.Reshape(x, integers(2, 240)), values(2, 20, 3, 4))
    check(ops.Reshape(x, integers(2, 20, 12)), values(2, 20, 3, 4), layouts=2)
    check(ops.Identity(x), values(2, 20, 3, 4), layouts=2)


def test_repetition() -> None:
    check(ops.Expand(x_of(3, 1), integers(2, 3, 5)), values(3, 1))
    check(ops.Expand(x_of(3, 1, 1), integers(1, 4, 1)), values(3, 1, 1))
    check(ops.Expand(x_of(2, 3), integers(1, 1)), values(2, 3))
    check(ops.Tile(x_of(2, 3), integers(3, 2)), values(2, 3))
    check(ops.Tile(x_of(2, 3), integers(0, 2)), values(2, 3))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode: str) -> None:
    check(ops.DepthToSpace(x_of(2, 36, 5, 7), blocksize=3, mode=mode), values(2, 36, 5, 7))
    check(ops.SpaceToDepth(x_of(2, 5, 6, 8), blocksize=2, mode=mode), values(2, 5, 6, 8))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("counts", [(16, 32), (64, 24, 40), (7, 9, 5), (32, 5), (16, 0, 16)])
def test_concat_of_channels(counts: tuple[int, ...], batch: int, isa: str) -> None:
    xs = [values(batch, count, 3, 5, seed=i) for i, count in enumerate(counts)]
    check(ops.Concat(*(x_of(*x.shape) for x in xs), axis=1), *xs, layouts=2, isa=isa)


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_concat_along_other_axes(axis: int) -> None:
    xs = [values(2, 20, 3, 5, seed=i) for i in range(3)]
    check(ops.Concat(*(x_of(*x.shape) for x in xs), axis=axis), *xs, layouts=2)


def test_concat_of_constants_and_of_one_value_twice() -> None:
    x, known = x_of(1, 16, 2, 2), Constant(values(1, 5, 2, 2, seed=3), f32)
    check(ops.Concat(x, known, x, axis=1), values(1, 16, 2, 2), layouts=2)


def nested(x: Output) -> Output:
    return ops.Concat(ops.Concat(x, ops.Neg(x), axis=1), x, axis=1).output(0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels", [16, 20, 32])
@pytest.mark.parametrize("convolved", [False, True])
@pytest.mark.parametrize("joined", [
    lambda x: ops.Concat(x, x, axis=1),
    lambda x: ops.Concat(x, x, x, axis=0),
    lambda x: ops.Concat(x, ops.Split(x, integers(1, 2), axis=2).output(0), axis=2),
    lambda x: ops.Concat(ops.Slice(x, integers(16), integers(99), integers(1)), x, axis=1),
    lambda x: ops.Concat(x, ops.Slice(x, integers(0), integers(7), integers(1)), axis=1),
    lambda x: ops.Concat(x, ops.Reshape(x, integers(0, -1, 3, 2)), axis=1),
    nested,
])  # fmt: skip
def test_concat_of_a_value_made_in_place_and_the_same_again(
    joined: Callable[[Output], Node], convolved: bool, channels: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_MAX_ISA", isa)
    x = x_of(1, channels, 3, 2)
    y = ops.Conv(x, Constant(values(channels, channels, 1, 1) / 100)) if convolved else ops.Sqrt(ops.Abs(x))
    model = Model([joined(y.output(0))], [x])
    given = values(1, channels, 3, 2)
    got = np.array(Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})([given])[0])
    np.testing.assert_allclose(got, evaluate_model(model, [given])[0], rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("counts", [(16, 32), (24, 16, 8), (5, 20)])
def test_split_of_channels(counts: tuple[int, ...], batch: int, isa: str) -> None:
    x = values(batch, sum(counts), 3, 5)
    check(ops.Split(x_of(*x.shape), integers(*counts), axis=1), x, layouts=2, isa=isa)


@pytest.mark.parametrize("shape", [(1, 0, 7, 8), (1, 16, 0, 8)])
def test_parts_of_nothing(shape: tuple[int, ...]) -> None:
    x = values(*shape)
    check(ops.Split(x_of(*shape), integers(1, 4, 3), axis=-1), x, layouts=2)
    check(ops.Slice(x_of(*shape), integers(3), integers(5), integers(3)), x, layouts=2)


def test_split_along_other_axes() -> None:
    x = values(2, 20, 6, 5)
    for axis in (0, 2):
        check(ops.Split(x_of(*x.shape), axis=axis, num_outputs=2), x, layouts=2)
    assert steps(ops.Split(x_of(6, 5), axis=0, num_outputs=2)) == ["copy", "copy"]  # to the network's outputs


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 48, 6, 5), (2, 30, 4, 4), (1, 240, 3, 3), (2, 12, 7)])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_channel_shuffle(groups: int, shape: tuple[int, ...], isa: str) -> None:
    check(ChannelShuffle(x_of(*shape), groups=groups), values(*shape), layouts=2, isa=isa)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "strides"),
    [
        ([0, 3], [99, 7], [1, 2], [1, 2]),
        ([5], [19], [1], [1]),
        ([16], [40], [1], [1]),
        ([-1], [-99], [1], [-3]),
        ([-41, -9], [-99, -99], [1, 3], [-1, -2]),
        ([-1, 1], [np.iinfo(np.int64).min, 3], [3, 1], [-1, 1]),
        ([0], [99], [3], [np.iinfo(np.int64).max]),
        ([4], [4], [2], [1]),
        ([1, 3, 2], [2, 21, 5], [0, 1, -1], [1, 5, 2]),
    ],
)
def test_slice(starts: list[int], ends: list[int], axes: list[int], strides: list[int]) -> None:
    x = values(2, 40, 9, 7)
    bounds = (integers(*each) for each in (starts, ends, axes, strides))
    check(ops.Slice(x_of(*x.shape), *bounds), x, layouts=2)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(0, 0, 1, 2, 0, 0, 2, 0), (1, 0, 0, 3, 0, 0, 1, 2)])
def test_pad(pads: tuple[int, ...], mode: str) -> None:
    x = values(2, 20, 4, 5)
    value = Constant(np.array(-1.5, np.float32), f32)
    check(ops.Pad(x_of(*x.shape), integers(*pads), value, mode=mode), x, layouts=2)
    check(ops.Pad(x_of(*x.shape), integers(3, 1), None, integers(-1), mode=mode), x, layouts=2)


def test_pad_of_channels_and_negative_pads() -> None:
    x = values(2, 20, 4, 5)
    check(ops.Pad(x_of(*x.shape), integers(0, 1, 0, -1, 0, 2, -1, 1)), x)
    check(ops.Pad(x_of(*x.shape), integers(0, 1, 0, 0, 0, -1, 0, 1)), x, layouts=2)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize(
    "pads", [(0, 0, 2, -2, 0, 0, -1, 2), (-1, 0, -3, 2, 0, 0, 0, -2), (1, 0, 3, -1, -1, 0, -2, -1)]
)
def test_pads_repeat_what_negative_ones_leave(pads: tuple[int, ...], mode: str) -> None:
    x = values(2, 20, 6, 5)
    check(ops.Pad(x_of(*x.shape), integers(*pads), mode=mode), x, layouts=2)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [-2, 0, 3])
def test_trilu(upper: int, diagonal: int) -> None:
    k = Constant(np.array(diagonal, np.int64), i64)
    check(ops.Trilu(x_of(3, 4, 6, element_type=i32), k, upper=upper), values(3, 4, 6, dtype=np.int32))
    check(ops.Trilu(x_of(5, 5), upper=upper), values(5, 5))


def indices_of(*shape: int, size: int, dtype: Any = np.int64) -> Array:
    return np.random.default_rng(7).integers(-size, size, shape, dtype)


def index_input(array: Array) -> Parameter:
    return Parameter(i64 if array.dtype == np.int64 else i32, list(array.shape), "indices")


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis: int, dtype: Any) -> None:
    x = values(3, 4, 5)
    indices = indices_of(2, 6, size=x.shape[axis], dtype=dtype)
    check(ops.Gather(x_of(3, 4, 5), index_input(indices), axis=axis), x, indices)
    check(ops.GatherElements(x_of(3, 4, 5), index_input(indices[None, :1, :4]), axis=axis), x, indices[None, :1, :4])


def test_gather_by_known_indices_is_a_view_or_a_copy() -> None:
    x = x_of(4, 3, 5)
    for node, kernels in (
        (ops.Gather(x, Constant(np.array(2), i64), axis=0), ["copy"]),  # to the network's output
        (ops.Gather(x, integers(1, 2, 3), axis=0), ["copy"]),
        (ops.Gather(x, Constant(np.array(-1), i64), axis=1), ["strided_copy"]),
        (ops.Gather(x, integers(3, 1), axis=0), ["strided_copy"]),
        (ops.Gather(x, integers(0, 2, 1), axis=0), ["gather"]),
    ):
        assert steps(node) == kernels
        check(node, values(4, 3, 5))


@pytest.mark.parametrize(("batch_dims", "depth"), [(0, 1), (0, 3), (1, 1), (1, 2), (2, 1)])
def test_gather_nd(batch_dims: int, depth: int) -> None:
    x = values(2, 3, 4)
    shape = (*x.shape[:batch_dims], 5, depth)
    indices = np.stack([indices_of(*shape[:-1], size=x.shape[batch_dims + d]) for d in range(depth)], -1)
    check(ops.GatherND(x_of(2, 3, 4), index_input(indices), batch_dims=batch_dims), x, indices)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("element_type", [f32, i64], ids=lambda each: each.name)
def test_scatter(reduction: str, element_type: ElementType) -> None:
    x = values(4, 6, dtype=element_type.numpy)
    data = x_of(4, 6, element_type=element_type)
    rows = np.array([[3, 1, 0, -2, 1, 0], [0, 0, 1, 0, 2, 3]])
    updates = values(2, 6, dtype=element_type.numpy, seed=1)
    given = Parameter(element_type, [2, 6], "updates")
    check(ops.ScatterElements(data, index_input(rows), given, axis=0, reduction=reduction), x, rows, updates,
          tolerance=1e-6)  # fmt: skip
    tuples = np.array([[1], [-1]])
    check(ops.ScatterND(data, index_input(tuples), given, reduction=reduction), x, tuples, updates, tolerance=1e-6)


def test_scatter_without_a_reduction_takes_any_type() -> None:
    x, updates = values(3, 4) > 0, values(2, 4, seed=1) > 0
    node = ops.ScatterND(
        x_of(3, 4, element_type=boolean), Constant(np.array([[2], [0]]), i64), Parameter(boolean, [2, 4], "updates")
    )
    check(node, x, updates)


def test_one_hot() -> None:
    indices = np.array([[0, 2, -1], [5, -6, 1]])
    on_off = Constant(np.array([-1.5, 2.5], np.float32), f32)
    for axis in (-1, 0, 1):
        check(ops.OneHot(index_input(indices), Constant(np.array(4), i64), on_off, axis=axis), indices)


def test_an_index_out_of_range_is_an_input_error_that_names_the_node() -> None:
    node = ops.Gather(x_of(3, 4), Parameter(i64, [2], "indices"), axis=0)
    node.friendly_name = "embedding"
    (segment,) = segments(node)
    with pytest.raises(InputError, match="embedding: index 3 is out of range for a dimension of 3"):
        run(segment, [values(3, 4), np.array([0, 3])])
    np.testing.assert_array_equal(run(segment, [values(3, 4), np.array([0, -3])])[0], values(3, 4)[[0, 0]])


@pytest.mark.parametrize("coordinates", [
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
])  # fmt: skip
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_of_maps(mode: str, coordinates: str) -> None:
    x = values(2, 20, 5, 7)
    region = Constant(np.array([0, 0, 0.125, -0.25, 1, 1, 0.8125, 0.9375], np.float32), f32)
    roi = region if coordinates == "tf_crop_and_resize" else None
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, "extrapolation_value": 3.0}
    for sizes in ((10, 14), (13, 3), (1, 9)):
        node = ops.Resize(x_of(*x.shape), roi, None, integers(2, 20, *sizes), **attributes)
        check(node, x, layouts=2, tolerance=SUM_OF_TAPS)
    scales = Constant(np.array([1, 1, 1.7, 0.6], np.float32), f32)
    check(ops.Resize(x_of(*x.shape), roi, scales, **attributes), x, layouts=2, tolerance=SUM_OF_TAPS)


@pytest.mark.parametrize("nearest_mode", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_modes_of_any_type(nearest_mode: str) -> None:
    x = values(1, 3, 8, 8, dtype=np.float64)
    scales = Constant(np.array([1, 1, 0.5, 2.5], np.float32), f32)
    node = ops.Resize(x_of(*x.shape, element_type=f64), None, scales, mode="nearest", nearest_mode=nearest_mode)
    check(node, x)


def test_resize_of_other_axes() -> None:
    x = values(2, 3, 4, 5, 6)
    sizes = integers(2, 3, 8, 3, 9)
    check(ops.Resize(x_of(*x.shape), None, None, sizes, mode="linear"), x, layouts=2, tolerance=SUM_OF_TAPS)
    check(
        ops.Resize(x_of(2, 3, 4), None, None, integers(3, 3, 7), mode="cubic"), values(2, 3, 4), tolerance=SUM_OF_TAPS
    )
    node = ops.Resize(x_of(6, 4), None, None, integers(9, 9), axes=[1, 0], mode="linear", cubic_coeff_a=-0.5,
                      keep_aspect_ratio_policy="not_larger")  # fmt: skip
    check(node, values(6, 4), tolerance=SUM_OF_TAPS)
    same = ops.Resize(x_of(1, 2, 3, 3), None, None, integers(1, 2, 3, 3), mode="linear")
    check(same, values(1, 2, 3, 3), layouts=2)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(mode: str, padding: str, align_corners: int) -> None:
    x = values(2, 3, 5, 7)
    grid = np.random.default_rng(4).uniform(-1.7, 1.7, (2, 6, 8, 2)).astype(np.float32)
    given = Parameter(f32, list(grid.shape), "grid")
    node = ops.GridSample(x_of(*x.shape), given, mode=mode, padding_mode=padding, align_corners=align_corners)
    # The place is rounded, too: by an epsilon of the coordinate, between neighbours that differ by 2 |x| at most.
    check(node, x, grid, tolerance=4 * SUM_OF_TAPS)


@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_cubic_weights_outside(exclude_outside: int) -> None:
    x = values(1, 16, 4, 4)
    node = ops.Resize(x_of(*x.shape), None, None, integers(1, 16, 9, 7), mode="cubic", cubic_coeff_a=-0.5,
                      exclude_outside=exclude_outside)  # fmt: skip
    check(node, x, layouts=2, tolerance=SUM_OF_TAPS)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_antialiased_resize(mode: str, exclude_outside: int) -> None:
    """As many taps along each axis as it shrinks, or more."""
    x = values(2, 18, 33, 20)
    for sizes in ((7, 9), (7, 40), (33, 3)):
        node = ops.Resize(x_of(*x.shape), None, None, integers(2, 18, *sizes), mode=mode, antialias=1,
                          exclude_outside=exclude_outside)  # fmt: skip
        check(node, x, layouts=2, tolerance=4 * SUM_OF_TAPS)


def test_a_region_that_is_read_backwards() -> None:
    x = values(1, 16, 9, 11)
    roi = Constant(np.array([0, 0, 1, 0.75, 1, 1, 0, 0.25], np.float32), f32)
    for mode in ("nearest", "linear", "cubic"):
        node = ops.Resize(x_of(*x.shape), roi, None, integers(1, 16, 12, 5), mode=mode,
                          coordinate_transformation_mode="tf_crop_and_resize")  # fmt: skip
        check(node, x, layouts=2, tolerance=SUM_OF_TAPS)


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        (ops.Slice(x_of(4), Parameter(i64, [1], "s"), integers(3)), "constant"),
        (ops.Resize(x_of(1, 4, element_type=f64), None, None, integers(1, 2), mode="linear"), "element type"),
        (ops.ScatterND(x_of(4, element_type=i8), Parameter(i64, [1, 1], "i"), Parameter(i8, [1], "u"), reduction="add"),
         "element type"),
        (ops.Transpose(x_of(1, 2, 1, 2, 1, 2, 2)), "rank"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.op_type,
)  # fmt: skip
def test_refusals(node: Node, cause: str) -> None:
    refused = decisions().refusal(node)
    assert refused is not None
    assert refused.cause == cause


def test_lengths_may_be_unknown_when_asked() -> None:
    x = x_of("n", 16, "h", "w")
    for node in (
        ops.Transpose(x, perm=[0, 2, 3, 1]),
        ops.Concat(x, x, axis=1),
        ops.Resize(x, None, Constant(np.array([1, 1, 2, 2], np.float32), f32), mode="nearest"),
        ops.Gather(x, Parameter(i64, ["k"], "indices"), axis=2),
    ):
        assert decisions().refusal(node) is None


def test_layouts_are_those_of_maps() -> None:
    node = ops.Transpose(x_of(1, 16, 4, 4), perm=[0, 2, 3, 1])
    decision = decisions()[node]
    assert [option.inputs[0] for option in decision.lowering.layouts(decision.spec)] == [
        Layout.PLAIN,
        Layout.BLOCKED,
        Layout.PLAIN,
    ]
