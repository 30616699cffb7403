"""Products over channels change places with Resize, pooling, Slice and Concat, and are merged, where that is cheaper.

If a rewrite is wrong, decoders of segmentation networks compute something else; if none happens, they take twice as
long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import ops
from engine.ir import Constant, ElementType, Model, Node, Parameter, bf16, f16, f32, f64, i32
from engine.limits import Limits, compilation
from engine.onnx import model_to_proto, read_model
from engine.ops import evaluate_model
from engine.passes import Manager, MatcherPass
from engine.passes.common import channel_products
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.linear_operators import LinearConcatSplitting, LinearHoisting, LinearMerging, LinearSinking
from engine.passes.common.residual_fusion import ResidualFusion
from engine.testing.networks import rounding_tolerance, seeded_network

Apply = Callable[..., Counter[str]]
Make = Callable[[Node], Node]
RNG = np.random.default_rng(11)
ALL: tuple[type[MatcherPass], ...] = (LinearConcatSplitting, LinearMerging, LinearHoisting, LinearSinking)


def ints(*values: int) -> Constant:
    return Constant(np.array(values, np.int64))


def array(*shape: int, dtype: Any = np.float32) -> Constant:
    return Constant((RNG.standard_normal(shape) / np.sqrt(shape[1] if len(shape) > 1 else 1)).astype(dtype))


def image(*shape: int | str, element_type: ElementType = f32) -> Parameter:
    return Parameter(element_type, list(shape), "x")


def conv(x: Node, outputs: int, *, bias: bool = True, **attributes: Any) -> Node:
    value = x.output(0)
    inputs = [array(outputs, value.shape[1].get_length(), 1, 1, dtype=value.element_type.numpy)]
    inputs += [array(outputs, dtype=value.element_type.numpy)] if bias else []
    return ops.Conv(x, *inputs, **attributes)


def linear(x: Node, outputs: int, *, bias: bool = True) -> Node:
    product = ops.MatMul(x, array(x.output(0).shape[-1].get_length(), outputs))
    return ops.Add(array(outputs), product) if bias else product


def resized(x: Node, height: int, width: int, **attributes: Any) -> Node:
    channels = x.output(0).shape[1].get_length()
    mode = {"mode": "linear"} | attributes
    return ops.Resize(x, None, None, ints(1, channels, height, width), **mode)


def scaled(x: Node, factor: float, **attributes: Any) -> Node:
    return ops.Resize(x, None, Constant(np.array([1, 1, factor, factor], np.float32)), **attributes)


def order(model: Model) -> list[str]:
    leaves = ("Parameter", "Constant", "Result")
    return [node.op_type for node in model.ordered_nodes() if node.op_type not in leaves]


def lengths(node: Node) -> tuple[int, ...]:
    return node.output(0).shape.get_shape()


# -- before an operator that gives more positions ---------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "grow",
    [
        lambda x: resized(x, 24, 30),
        lambda x: resized(x, 24, 30, coordinate_transformation_mode="align_corners"),
        lambda x: resized(x, 24, 30, mode="cubic"),
        lambda x: resized(x, 24, 30, mode="cubic", exclude_outside=1),
        lambda x: resized(x, 24, 30, antialias=1),
        lambda x: scaled(x, 4, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        lambda x: ops.Resize(x, None, None, ints(24, 30), axes=[2, 3], mode="linear"),
        lambda x: ops.Pad(x, ints(0, 0, 9, 9, 0, 0, 9, 9), mode="wrap"),
    ],
    ids=["linear", "corners", "cubic", "excluded", "antialias", "nearest", "axes", "wrap"],
)
def test_a_convolution_moves_before_more_positions(grow: Make, bias: bool, apply: Apply) -> None:
    x = image(1, 64, 6, 6)
    model = Model([ops.Relu(conv(grow(x), 32, bias=bias))], [x])
    apply(model, LinearHoisting)
    assert order(model)[0] == "Conv"
    assert order(model)[2:] == ["Relu"]


def test_padding_with_zeros_follows_a_convolution_without_bias(apply: Apply) -> None:
    x = image(1, 64, 6, 6)
    model = Model([conv(ops.Pad(x, ints(0, 0, 9, 9, 0, 0, 9, 9)), 32, bias=False)], [x])
    apply(model, LinearHoisting)
    assert order(model) == ["Conv", "Pad"]


def test_an_unknown_batch_does_not_matter(apply: Apply) -> None:
    x = image("N", 64, 6, 6)
    model = Model([conv(scaled(x, 4, mode="linear"), 32)], [x])
    apply(model, LinearHoisting)
    assert order(model) == ["Conv", "Resize"]


@pytest.mark.parametrize("element_type", [f16, bf16, f64])
def test_other_floating_point_types(element_type: ElementType, apply: Apply) -> None:
    x = image(1, 64, 6, 6, element_type=element_type)
    if element_type is bf16:  # the operator set has no Resize of bf16
        model = Model([conv(ops.Pad(x, ints(0, 0, 9, 9, 0, 0, 9, 9)), 32, bias=False)], [x])
    else:
        model = Model([conv(resized(x, 24, 24), 32)], [x])
    apply(model, LinearHoisting)
    assert order(model)[0] == "Conv"


# -- behind an operator that gives fewer positions --------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "shrink",
    [
        lambda x: ops.AveragePool(x, kernel_shape=[2, 2], strides=[2, 2]),
        lambda x: ops.AveragePool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        lambda x: ops.AveragePool(x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1),
        lambda x: ops.GlobalAveragePool(x),
        lambda x: ops.ReduceMean(x, ints(2, 3), keepdims=1),
        lambda x: ops.Slice(x, ints(0, 1), ints(100, 9), ints(2, 3), ints(2, 3)),
        lambda x: ops.Gather(x, ints(3, 1), axis=2),
        lambda x: resized(x, 6, 5),
    ],
    ids=["pool", "padded", "ceil", "global", "mean", "slice", "gather", "smaller"],
)
def test_a_convolution_moves_behind_fewer_positions(shrink: Make, bias: bool, apply: Apply) -> None:
    x = image(1, 48, 12, 10)
    model = Model([ops.Relu(shrink(conv(x, 64, bias=bias)))], [x])
    apply(model, LinearSinking)
    assert order(model)[1:] == ["Conv", "Relu"]


@pytest.mark.parametrize(
    ("shrink", "rank"),
    [
        (lambda x: ops.Gather(x, Constant(np.int64(-1)), axis=1), 2),
        (lambda x: ops.Slice(x, ints(-1), ints(100), ints(1)), 3),
        (lambda x: ops.ReduceMean(x, ints(1), keepdims=0), 2),
    ],
    ids=["last", "slice", "mean"],
)
def test_the_last_token_alone_is_multiplied(shrink: Make, rank: int, apply: Apply) -> None:
    """The scores of the other tokens of a language model are not computed if nothing reads them."""
    x = image(2, 30, 48)
    model = Model([shrink(linear(x, 100))], [x])
    apply(model, LinearSinking)
    assert order(model)[1:] == ["MatMul", "Add"]
    assert len(model.results[0].input_value(0).shape) == rank


def test_channels_whose_number_only_the_weights_know(apply: Apply) -> None:
    x = image(1, "C", 12, 10)
    pooled = Model([ops.GlobalAveragePool(ops.Conv(x, array(64, 48, 1, 1)))], [x])
    apply(pooled, LinearSinking, inputs={"x": RNG.standard_normal((1, 48, 12, 10)).astype(np.float32)})
    assert order(pooled) == ["GlobalAveragePool", "Conv"]
    x = image(1, "C", 12, 10)
    head = Model([conv(ops.GlobalAveragePool(ops.Conv(x, array(64, 48, 1, 1))), 24)], [x])
    apply(head, LinearMerging, inputs={"x": RNG.standard_normal((1, 48, 12, 10)).astype(np.float32)})
    assert order(head) == ["GlobalAveragePool", "Conv"]
    x = image(2, 30, "K")
    tokens = Model([ops.Slice(ops.MatMul(x, array(48, 100)), ints(-1), ints(100), ints(1))], [x])
    apply(tokens, LinearSinking, inputs={"x": RNG.standard_normal((2, 30, 48)).astype(np.float32)})
    assert order(tokens) == ["Slice", "MatMul"]


def test_a_gemm_of_other_ranks_becomes_a_product_of_matrices(apply: Apply) -> None:
    x = image(1000, 64)
    rows = Model([ops.Gather(ops.Gemm(x, array(32, 64), array(32), transB=1), Constant(np.array([[1, 2]])))], [x])
    assert apply(rows, LinearSinking) == {"Gather": 1, "MatMul": 1, "Add": 1}
    x = image(2, 3, 64)
    table = Model([ops.Gemm(ops.Gather(x, Constant(np.int64(1))), array(64, 8))], [x])
    assert apply(table, *ALL, modified=False) == {"Gather": 1, "Gemm": 1}


@pytest.mark.parametrize("element_type", [f16, bf16])
def test_sums_that_f16_cannot_hold_stay(element_type: ElementType, apply: Apply) -> None:
    kind = element_type.numpy
    x = image(1, 8, 64, element_type=element_type)
    large = Constant((400 * np.eye(64)).astype(kind))
    twice = Model([ops.MatMul(ops.MatMul(x, large), large)], [x])
    apply(twice, *ALL, modified=False)
    x = image(1, 1024, 64, element_type=element_type)
    summed = Model([ops.ReduceSum(ops.MatMul(x, large), ints(1))], [x])
    apply(summed, *ALL, modified=False)


@pytest.mark.parametrize("kind", ["ReduceSum", "AveragePool"])
def test_what_changes_constants_is_exchanged_only_without_a_bias(kind: str, apply: Apply) -> None:
    for bias in (False, True):
        x = image(1, 48, 12, 10)
        product = conv(x, 64, bias=bias)
        if kind == "ReduceSum":
            small: Node = ops.ReduceSum(product, ints(2, 3))
        else:
            small = ops.AveragePool(
                product, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1
            )
        model = Model([small], [x])
        apply(model, LinearSinking, modified=not bias)
        assert order(model) == (["Conv", kind] if bias else [kind, "Conv"])


# -- through a Concat -------------------------------------------------------------------------------------


def decoder(*, batch: int | str = 1, kept: int = 1, channels: int = 32, outputs: int = 32) -> Model:
    """The head of SegFormer: maps of several sizes, resized to the largest and joined."""
    parameters = [Parameter(f32, [batch, channels, 4 << i, 4 << i], f"x{i}") for i in range(2 + kept)]
    size = 4 << 2
    maps: list[Node] = []
    for i, x in enumerate(parameters[:2]):
        maps.append(scaled(x, size / (4 << i), mode="linear", coordinate_transformation_mode="half_pixel"))
    for i in range(kept):
        parameters[2 + i] = Parameter(f32, [batch, channels, size, size], f"x{2 + i}")
        maps.append(ops.Relu(parameters[2 + i]))
    return Model([ops.Relu(conv(ops.Concat(*maps, axis=1), outputs))], parameters)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (0, {"Resize": 2, "Conv": 2, "Add": 1, "Relu": 1}),
        (1, {"Resize": 2, "Conv": 3, "Add": 2, "Relu": 2}),
        (2, {"Resize": 2, "Conv": 3, "Add": 2, "Relu": 3, "Concat": 1}),
    ],
)
@pytest.mark.parametrize("batch", [1, "N"])
def test_resized_maps_are_multiplied_at_their_own_size(
    batch: int | str, kept: int, expected: dict[str, int], apply: Apply
) -> None:
    model = decoder(batch=batch, kept=kept)
    assert apply(model, LinearConcatSplitting) == expected
    sizes = sorted(lengths(node)[2] for node in model.ordered_nodes() if node.op_type == "Conv" and batch == 1)
    assert sizes == ([4, 8, 16] if kept else [4, 8]) or batch == "N"


def test_the_last_sum_and_the_activation_are_fused_into_the_product(apply: Apply) -> None:
    model = decoder()
    counts = apply(model, CommonOptimizations, enable=(ResidualFusion, ActivationFusion))
    assert counts == {"Resize": 2, "Conv": 2, "Add": 1, "Relu": 1, "FusedConv": 1}


def test_a_joined_product_of_the_last_axis(apply: Apply) -> None:
    x, y = Parameter(f32, [1, 8, 96], "x"), Parameter(f32, [1, 64, 96], "y")
    repeated = ops.Gather(x, Constant(np.arange(64) // 8), axis=1)
    model = Model([linear(ops.Concat(repeated, ops.Relu(y), axis=2), 64)], [x, y])
    counts = apply(model, LinearConcatSplitting)
    assert (counts["MatMul"], counts["Concat"]) == (2, 0)


@pytest.mark.parametrize(
    "join",
    [
        lambda a, b: ops.Concat(a, b, axis=2),
        lambda a, b: ops.Concat(ops.Relu(a), b, axis=1),
        lambda a, b: ops.Concat(a, a, axis=1),
    ],
    ids=["positions", "activation", "twice"],
)
def test_other_concatenations_stay(join: Callable[[Node, Node], Node], apply: Apply) -> None:
    x, y = Parameter(f32, [1, 32, 4, 16], "x"), Parameter(f32, [1, 32, 16, 16], "y")
    grown = ops.Resize(x, None, None, ints(1, 32, 16, 16), mode="linear")
    model = Model([conv(join(grown, y), 32), ops.Relu(y)], [x, y])
    apply(model, *ALL, modified=False)


# -- in sequence ------------------------------------------------------------------------------------------


def test_products_in_sequence_are_merged(apply: Apply) -> None:
    x = image(1, 16, 9, 9)
    model = Model([conv(conv(x, 64), 24)], [x])
    assert apply(model, LinearMerging) == {"Conv": 1}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_a_linear_layer_is_merged_through_its_way_to_a_map(first: bool, second: bool, apply: Apply) -> None:
    """Tokens [N, L, C] become a map [N, C, H, W]: in SegFormer, before the Resize."""
    x = image("N", 36, 16)
    tokens = ops.Transpose(linear(x, 64, bias=first), perm=[0, 2, 1])
    model = Model([conv(ops.Reshape(tokens, ints(0, 64, 6, 6)), 24, bias=second)], [x])
    assert apply(model, LinearMerging) == {"Transpose": 1, "Reshape": 1, "Conv": 1}


def test_matrices_in_sequence_are_merged(apply: Apply) -> None:
    x = image(8, 16)
    hidden = ops.Gemm(x, array(64, 16), array(64), transB=1)
    model = Model([linear(ops.Gemm(hidden, array(64, 48)), 24)], [x])
    assert apply(model, LinearMerging) == {"MatMul": 1, "Add": 1}


def chain(size: int, rows: int | str, count: int = 3) -> Model:
    """x [rows, size] times `count` matrices."""
    x = image(rows, size)
    value: Node = x
    for _ in range(count):
        value = ops.MatMul(value, array(size, size))
    return Model([value], [x])


def test_large_matrices_are_merged_only_for_many_positions(apply: Apply) -> None:
    """For one row, the product of two matrices costs as much as a thousand inferences save."""
    apply(chain(512, "rows"), LinearMerging, modified=False)
    assert apply(chain(512, 2048, count=2), LinearMerging) == {"MatMul": 1}
    assert apply(chain(64, "rows"), LinearMerging) == {"MatMul": 1}


def test_a_chain_of_matrices_is_merged_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each merge computed the products before it again, 64 matrices of 512 x 512 would take minutes to compile."""
    products: list[tuple[int, ...]] = []

    def product(a: Any, b: Any) -> Any:
        products.append(a.shape)
        return compute(a, b)

    compute = channel_products._product
    monkeypatch.setattr(channel_products, "_product", product)
    model, manager = chain(160, 2048, count=12), Manager()
    manager.register_pass(LinearMerging)
    manager.run_passes(model)
    (weights,) = [node for node in model.ordered_nodes() if isinstance(node, Constant)]
    assert weights.data.shape == (160, 160)
    assert len(products) <= 2 * 12


def test_merged_matrices_are_within_the_budget_of_the_compilation() -> None:
    def products(limits: Limits) -> int:
        model, manager = chain(64, 256, count=9), Manager()
        manager.register_pass(LinearMerging)
        with compilation(limits):
            manager.run_passes(model)
        return sum(node.op_type == "MatMul" for node in model.ordered_nodes())

    each = 64**3 // 8
    assert [products(Limits(folded_work=each * count)) for count in (0, 3, 8)] == [9, 6, 1]
    assert products(Limits(folded_bytes=3 * 64 * 64 * 4)) == 6


@pytest.mark.parametrize(
    "between",
    [
        lambda x: ops.Relu(conv(x, 64)),
        lambda x: conv(x, 4),
        lambda x: ops.Pad(conv(x, 64), ints(0, 0, 1, 1, 0, 0, 1, 1)),
        lambda x: ops.Reshape(ops.Transpose(conv(x, 64), perm=[0, 2, 1, 3]), ints(1, 64, 9, 9)),
        lambda x: ops.Conv(x, array(64, 8, 1, 1), group=2),
        lambda x: ops.Conv(x, array(64, 16, 3, 3), pads=[1, 1, 1, 1]),
        lambda x: ops.Conv(x, array(64, 16, 1, 1), pads=[1, 1, 1, 1]),
        lambda x: ops.Conv(x, array(64, 16, 1, 1), strides=[2, 2]),
    ],
    ids=["activation", "few-channels", "padding", "mixed", "groups", "window", "padded", "strides"],
)
def test_other_sequences_stay(between: Make, apply: Apply) -> None:
    x = image(1, 16, 9, 9)
    model = Model([conv(between(x), 24)], [x])
    apply(model, LinearMerging, modified=False)


def test_a_sum_that_repeats_the_product_is_no_bias(apply: Apply) -> None:
    """One column plus a row of numbers is a matrix."""
    x = image(2, 30, 48)
    total = ops.Add(ops.MatMul(x, array(48, 1)), array(64))
    model = Model([ops.Gather(total, Constant(np.int64(-1)), axis=1)], [x])
    apply(model, LinearSinking, modified=False)
    assert order(model) == ["MatMul", "Add", "Gather"]


def test_a_product_that_is_read_elsewhere_stays(apply: Apply) -> None:
    x = image(1, 16, 9, 9)
    inner = conv(x, 64)
    model = Model([conv(inner, 24), ops.GlobalAveragePool(inner), ops.Relu(inner)], [x])
    apply(model, *ALL, modified=False)


# -- what blocks an exchange ------------------------------------------------------------------------------


def cropped(x: Node) -> Node:
    region = Constant(np.array([0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5], np.float32))
    mode = "tf_crop_and_resize"
    return ops.Resize(x, region, None, ints(1, 64, 24, 24), coordinate_transformation_mode=mode, mode="linear")


@pytest.mark.parametrize(
    "make",
    [
        lambda x: conv(cropped(x), 32),
        lambda x: conv(ops.Pad(x, ints(0, 0, 9, 9, 0, 0, 9, 9)), 32),
        lambda x: conv(ops.Pad(x, ints(0, 0, 9, 9, 0, 0, 9, 9), Constant(np.float32(1))), 32, bias=False),
        lambda x: conv(ops.Resize(x, None, None, ints(1, 128, 24, 24), mode="linear"), 32),
        lambda x: ops.Conv(resized(x, 24, 24), array(32, 16, 1, 1), group=4),
        lambda x: ops.Conv(resized(x, 24, 24), array(32, 64, 3, 3)),
        lambda x: ops.Conv(resized(x, 24, 24), ops.Reshape(x, ints(36, 64, 1, 1))),
        lambda x: conv(resized(x, 24, 24, keep_aspect_ratio_policy="not_larger"), 32),
        lambda x: conv(ops.Relu(resized(x, 24, 24)), 32),
        lambda x: conv(resized(x, 6, 7), 600),
        lambda x: ops.Slice(conv(x, 32), ints(0), ints(4), ints(1)),
        lambda x: ops.MaxPool(conv(x, 32), kernel_shape=[3, 3]),
        lambda x: ops.ReduceMean(conv(x, 32), ints(1, 2)),
    ],
    ids=[
        "extrapolation", "bias", "ones", "channels", "groups", "window", "computed", "ratio", "activation", "dearer",
        "channel-slice", "maximum", "channel-mean",
    ],
)  # fmt: skip
def test_what_does_not_commute_or_gain_stays(make: Make, apply: Apply) -> None:
    x = image(1, 64, 6, 6)
    apply(Model([make(x)], [x]), *ALL, modified=False)


def test_unknown_lengths_that_change_stay(apply: Apply) -> None:
    x = image(1, 64, "H", 6)
    apply(Model([conv(scaled(x, 4, mode="linear"), 32)], [x]), *ALL, modified=False)


def test_integers_stay(apply: Apply) -> None:
    x = image(8, 30, 16, element_type=i32)
    product = ops.MatMul(x, Constant(RNG.integers(-3, 4, (16, 40)).astype(np.int32)))
    apply(Model([ops.Gather(product, Constant(np.int64(-1)), axis=1)], [x]), *ALL, modified=False)


def test_a_resized_map_that_is_read_elsewhere_is_still_computed(apply: Apply) -> None:
    """Then the exchange adds a second Resize, so it has to save more."""
    for channels, modified in ((256, True), (64, False)):
        x = image(1, channels, 4, 4)
        grown = resized(x, 32, 32)
        model = Model([conv(grown, 256), ops.Relu(grown)], [x])
        assert apply(model, LinearHoisting, modified=modified)["Resize"] == (2 if modified else 1)


def test_a_device_can_leave_a_node() -> None:
    x = image(1, 64, 6, 6)
    model = Model([conv(resized(x, 24, 30), 32)], [x])
    manager = Manager()
    manager.register_pass(LinearHoisting)
    manager.pass_config.set_callback(LinearHoisting, callback=lambda node: node.op_type == "Conv")
    assert not manager.run_passes(model)
    assert order(model) == ["Resize", "Conv"]


# -- random graphs ----------------------------------------------------------------------------------------


def random_map(draw: st.DrawFn, x: Node) -> Node:
    """A movement, an activation, a product, or nothing."""
    _, channels, height, width = lengths(x)
    if height == 1:
        return x  # a window would not fit, and a slice be empty
    h, w = draw(st.sampled_from([3, 8, 16])), draw(st.sampled_from([4, 8, 16]))
    modes = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
    choices: list[Callable[[], Node]] = [
        lambda: resized(
            x, h, w,
            mode=draw(st.sampled_from(["nearest", "linear", "cubic"])),
            coordinate_transformation_mode=draw(st.sampled_from(modes)), nearest_mode="floor",
        ),
        lambda: ops.AveragePool(
            x, kernel_shape=[2, 2], pads=[0, 1, 0, 1], strides=[1, 2], count_include_pad=draw(st.integers(0, 1))
        ),
        lambda: ops.Pad(x, ints(0, 0, 2, 0, 0, 0, 1, 5), mode=draw(st.sampled_from(["constant", "edge"]))),
        lambda: ops.Slice(x, ints(1), ints(height), ints(2)),
        lambda: ops.Gather(x, Constant(np.arange(2 * width) % width), axis=3),
        lambda: ops.ReduceMean(x, ints(3)),
        lambda: ops.Transpose(x, perm=[0, 1, 3, 2]),
        lambda: ops.Reshape(ops.Reshape(x, ints(1, channels, -1)), ints(1, channels, width, height)),
        lambda: ops.Relu(x),
        lambda: conv(x, draw(st.sampled_from([8, 32, 48])), bias=draw(st.booleans())),
    ]  # fmt: skip
    return draw(st.sampled_from(choices))()


@st.composite
def networks(draw: st.DrawFn) -> tuple[Model, dict[str, Any]]:
    sources = [Parameter(f32, [1, 32, 4 << i, 4], f"x{i}") for i in range(draw(st.integers(1, 3)))]
    maps: list[Node] = []
    for source in sources:
        x: Node = source
        for _ in range(draw(st.integers(1, 3))):
            x = random_map(draw, x)
        maps.append(resized(x, 16, 16) if len(sources) > 1 else x)
    joined = ops.Concat(*maps, axis=1) if len(maps) > 1 else maps[0]
    result = conv(joined, draw(st.sampled_from([16, 64])), bias=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 2))):
        result = random_map(draw, result)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    feed = {s.friendly_name: rng.standard_normal(lengths(s)).astype(np.float32) for s in sources}
    return Model([ops.Sigmoid(result)], sources), feed


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(networks())
def test_random_networks_compute_the_same(drawn: tuple[Model, dict[str, Any]]) -> None:
    """Compared with the reference evaluation and with onnxruntime."""
    model, feed = drawn
    before = model.clone()
    manager = Manager(checked=True)
    manager.register_pass(CommonOptimizations)
    manager.run_passes(model)
    assert not manager.run_passes(model)
    (expected,), (found,) = evaluate_model(before, list(feed.values())), evaluate_model(model, list(feed.values()))
    tolerance = rounding_tolerance(model_to_proto(before)) * np.abs(expected).max()
    assert np.abs(expected - found).max() <= tolerance
    session = onnxruntime.InferenceSession(
        model_to_proto(before).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert np.abs(session.run(None, feed)[0] - found).max() <= tolerance


def test_the_head_of_segformer_is_merged_as_a_whole() -> None:
    """Each of the four linear layers becomes one with its part of the convolution, at its own size."""
    network = seeded_network("segformer_b0", small=True, decoder=64)
    model = read_model(network.model)
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.run_passes(model)
    counts = manager.rewrite_counts()
    assert (counts["LinearConcatSplitting"], counts["LinearMerging"]) == (1, 4)
    assert not [node for node in model.ordered_nodes() if node.op_type == "Concat" and len(lengths(node)) == 4]
    feed = list(network.inputs.values())
    (expected,), (found,) = evaluate_model(read_model(network.model), feed), evaluate_model(model, feed)
    assert np.abs(expected - found).max() <= rounding_tolerance(network.model) * np.abs(expected).max()
