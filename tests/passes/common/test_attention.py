"""Graphs in which an attention must not be recognised, and what the recognised one keeps. If it fails, results change
silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, Model, Node, Parameter, boolean, f16, f32, f64, i4, i8
from engine.ops.evaluator import evaluate_model
from engine.ops.internal import FusedAttention
from engine.passes import Manager, check_equivalence
from engine.passes.common.attention_bias_merging import AttentionBiasMerging, WindowMaskSinking
from engine.passes.common.attention_fusion import AttentionFusion, InternalAttentionFusion, RelaxedAttentionFusion
from engine.passes.common.attention_heads_fusion import AttentionHeadsFusion
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.grouped_query_fusion import GroupedQueryFusion
from engine.passes.common.packed_attention_fusion import PackedAttentionFusion
from engine.passes.common.qkv_projection_fusion import QKVProjectionFusion

Apply = Callable[..., Counter[str]]
B, H, S, T, D = 2, 2, 3, 5, 4


def attention(mask: Any = None, *, guard: bool = False, element: Any = f32, scale: Any = None, axis: int = -1) -> Model:
    """softmax(q k^T * scale + mask) v, keys transposed in the graph; `mask` is an array, a type's shape or a node."""
    q, k, v = (Parameter(element, [B, H, n, D], name) for n, name in ((S, "q"), (T, "k"), (T, "v")))
    parameters = [q, k, v]
    node: Node = ops.MatMul(q, ops.Transpose(k, perm=[0, 1, 3, 2]))
    if scale is not None:
        node = ops.Mul(node, Constant(np.asarray(scale), element))
    if isinstance(mask, list):
        parameters.append(Parameter(element, mask, "mask"))
        mask = parameters[-1]
    if mask is not None:
        node = ops.Add(node, mask if isinstance(mask, Node) else Constant(np.asarray(mask), element))
    node = ops.Softmax(node, axis=axis)
    if guard:
        node = ops.Where(ops.IsNaN(node), Constant(0.0, element), node)
    return Model([ops.MatMul(node, v, friendly_name="out")], parameters)


def bool_masked(low: float, **more: Any) -> Model:
    keep = Parameter(boolean, [B, 1, S, T], "keep")
    model = attention(ops.Where(keep, Constant(0.0), Constant(low)), **more)
    model.add_parameter(keep)
    return model


def test_without_mask_it_is_exact_and_named(apply: Apply) -> None:
    model = attention(scale=0.25)
    assert apply(model, AttentionFusion) == {"Attention": 1}
    node = model.node("out")
    assert node.op_type == "Attention"
    assert node.attributes["scale"] == 0.25


def test_a_scale_of_f64_is_taken_over_only_if_the_attribute_holds_it(apply: Apply) -> None:
    assert "Attention" in apply(attention(scale=0.25, element=f64), AttentionFusion)
    assert "Attention" not in apply(attention(scale=0.3, element=f64), AttentionFusion, modified=False)


def test_a_finite_mask_is_taken_over(apply: Apply) -> None:
    assert apply(bool_masked(float(np.finfo(np.float32).min)), AttentionFusion)["Attention"] == 1


def test_rows_without_a_key_are_the_same(apply: Apply) -> None:
    model = bool_masked(float(np.finfo(np.float32).min))
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal([B, H, m, D]).astype("f") for n, m in (("q", S), ("k", T), ("v", T))}
    apply(model, AttentionFusion, inputs={**inputs, "keep": np.zeros([B, 1, S, T], bool)})


@pytest.mark.parametrize(
    "model",
    [
        lambda: bool_masked(-np.inf),
        lambda: attention([B, 1, S, T]),
        lambda: attention(np.full([1, 1, S, T], -np.inf)),
        lambda: bool_masked(float(np.finfo(np.float32).min), guard=True),
    ],
    ids=["may-forbid-a-row", "mask-of-the-user", "constant-that-forbids-rows", "guarded"],
)
def test_what_differs_without_a_number_is_left_to_the_relaxed_pass(model: Callable[[], Model], apply: Apply) -> None:
    assert apply(model(), AttentionFusion, modified=False)["Attention"] == 0
    relaxed = model()
    names = {parameter.friendly_name for parameter in relaxed.parameters}
    rng = np.random.default_rng(0)
    shapes = {"q": S, "k": T, "v": T}
    inputs: dict[str, Any] = {n: rng.standard_normal([B, H, m, D]).astype("f") for n, m in shapes.items()}
    if "keep" in names:
        inputs["keep"] = np.tri(S, T, 1, dtype=bool)[None, None].repeat(B, axis=0)
    if "mask" in names:
        inputs["mask"] = rng.standard_normal([B, 1, S, T]).astype("f")
    manager = Manager(checked=True)
    manager.register_pass(RelaxedAttentionFusion)
    before = relaxed.clone()
    assert manager.run_passes(relaxed)
    expected, actual = evaluate_model(before, inputs)[0], evaluate_model(relaxed, inputs)[0]
    keys = np.isfinite(expected)
    np.testing.assert_allclose(actual[keys], expected[keys], atol=1e-6)


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("low", [-np.inf, float(np.finfo(np.float32).min)])
def test_the_internal_operator_keeps_rows_without_a_number(low: float, guard: bool, apply: Apply) -> None:
    """A row without a key and a query of NaN give what the graph gave, where the operator of ONNX would not."""
    model = bool_masked(low, guard=guard)
    rng = np.random.default_rng(0)
    lengths = {"q": S, "k": T, "v": T}
    inputs: dict[str, Any] = {n: rng.standard_normal([B, H, m, D]).astype("f") for n, m in lengths.items()}
    inputs["q"][0, 1, 2, 3] = np.nan
    inputs["keep"] = np.tri(S, T, 1, dtype=bool)[None, None].repeat(B, axis=0)
    inputs["keep"][1, 0, 1] = False
    assert apply(model, InternalAttentionFusion, inputs=inputs)["FusedAttention"] == 1
    assert model.node("out").attributes["rows"] == ("guarded" if guard else "softmax")


@pytest.mark.parametrize("rows", ["attention", "softmax", "guarded"])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_parts_of_one_product_are_read_as_a_whole(rows: str, kv_heads: int, apply: Apply) -> None:
    x = Parameter(f32, ["B", "S", (4 + 2 * kv_heads) * D], "x")
    sizes = Constant(np.array([4 * D, kv_heads * D, kv_heads * D]))
    split = ops.create("Split", [x, sizes], {"axis": 2}, num_outputs=3)
    q, k, v = (split.output(index) for index in range(3))
    if rows == "attention":
        node = ops.Attention(q, k, v, q_num_heads=4, kv_num_heads=kv_heads, is_causal=1)
    else:
        node = FusedAttention(q, k, v, rows=rows, scale=0.5, is_causal=1, q_num_heads=4, kv_num_heads=kv_heads)
    data = np.random.default_rng(0).standard_normal([2, 5, (4 + 2 * kv_heads) * D]).astype("f")
    counts = apply(Model([node], [x]), PackedAttentionFusion, inputs={"x": data})
    assert (counts["FusedAttention"], counts["Split"]) == (1, 0)


@pytest.mark.parametrize("change", ["softcap", "read again", "other order", "four dimensions", "wider values"])
def test_what_the_packed_form_has_no_room_for_stays(change: str, apply: Apply) -> None:
    shapes = {"four dimensions": [B, H, S, 3 * D], "wider values": [B, S, 8 * D]}
    x = Parameter(f32, shapes.get(change, [B, S, 6 * D]), "x")
    split = ops.create("Split", [x], {"axis": -1, "num_outputs": 3}, num_outputs=3)
    if change == "wider values":
        split = ops.create("Split", [x, Constant(np.array([2 * D, 2 * D, 4 * D]))], {"axis": -1}, num_outputs=3)
    q, k, v = (split.output(index) for index in ((1, 0, 2) if change == "other order" else range(3)))
    heads = {} if change == "four dimensions" else {"q_num_heads": 2, "kv_num_heads": 2}
    more = {"softcap": 2.0} if change == "softcap" else {}
    results = [ops.Attention(q, k, v, **heads, **more)]
    if change == "read again":
        results.append(ops.Relu(k))
    assert apply(Model(results, [x]), PackedAttentionFusion, modified=False)["Split"] == 1


def test_a_boolean_mask_stays_boolean() -> None:
    model = bool_masked(-np.inf, guard=True)
    manager = Manager(checked=True)
    manager.register_pass(RelaxedAttentionFusion)
    assert manager.run_passes(model)
    assert model.node("out").input_value(3).element_type is boolean


def test_in_common_optimizations_the_relaxed_form_waits_to_be_enabled(count: Callable[[Model], Counter[str]]) -> None:
    for enabled in (False, True):
        model = bool_masked(-np.inf, guard=True)
        manager = Manager()
        manager.register_pass(CommonOptimizations)
        if enabled:
            manager.pass_config.enable(RelaxedAttentionFusion)
        manager.run_passes(model)
        assert count(model)["Attention"] == int(enabled)


@pytest.mark.parametrize(
    "mask",
    [np.zeros([1, 1, S, 1]), np.zeros([1, 1, 1, 1, T]), np.zeros([T]), np.full([1, 1, S, T], np.nan)],
    ids=["last-axis-broadcast", "rank-5", "rank-1", "not-a-number"],
)
def test_masks_that_the_operator_reads_otherwise_stay(mask: Any, apply: Apply) -> None:
    if mask.ndim == 4 and np.isnan(mask).any():
        assert apply(attention(mask), AttentionFusion, modified=False)["Attention"] == 0
        return
    mask = mask + 1.0
    assert apply(attention(mask), AttentionFusion, modified=False)["Attention"] == 0


@pytest.mark.parametrize("low", [-np.inf, float(np.finfo(np.float32).min)])
def test_a_constant_causal_mask_becomes_the_attribute(low: float, apply: Apply) -> None:
    model = attention(np.where(np.tri(S, T, dtype=bool), 0.0, low)[None, None])
    apply(model, AttentionFusion)
    node = model.node("out")
    assert node.attributes["is_causal"] == 1
    assert node.num_inputs == 3


def test_a_mask_of_mild_numbers_is_not_causal(apply: Apply) -> None:
    model = attention(np.where(np.tri(S, T, dtype=bool), 0.0, -10.0)[None, None])
    apply(model, AttentionFusion)
    assert model.node("out").attributes["is_causal"] == 0


def test_zeros_are_no_mask(apply: Apply) -> None:
    model = attention(np.zeros([1, 1, S, T]))
    apply(model, AttentionFusion)
    assert model.node("out").num_inputs == 3


def test_the_lowest_half_can_overflow_with_a_score(apply: Apply) -> None:
    low = Constant(np.float16(-65504.0), f16)
    keep = Parameter(boolean, [B, 1, S, T], "keep")
    model = attention(ops.Where(keep, Constant(0.0, f16), low), element=f16)
    model.add_parameter(keep)
    assert apply(model, AttentionFusion, modified=False)["Attention"] == 0


@pytest.mark.parametrize(("scale", "axis"), [(-0.5, -1), (0.0, -1), (0.5, 2)])
def test_scales_and_axes_that_the_operator_lacks_stay(scale: float, axis: int, apply: Apply) -> None:
    assert apply(attention(scale=scale, axis=axis), AttentionFusion, modified=False)["Attention"] == 0


def test_scores_that_are_read_elsewhere_stay(apply: Apply) -> None:
    model = attention()
    softmax = next(node for node in model.ordered_nodes() if node.op_type == "Softmax")
    model.add_result(softmax, "scores")
    assert apply(model, AttentionFusion, modified=False)["Attention"] == 0


def test_scales_on_both_factors_multiply(apply: Apply) -> None:
    q, k, v = (Parameter(f32, [B, H, S, D], name) for name in "qkv")
    c = Constant(np.float32(D**-0.25))
    scores = ops.MatMul(ops.Mul(q, c), ops.Mul(ops.Transpose(k, perm=[0, 1, 3, 2]), c))
    model = Model(
        [ops.MatMul(ops.Softmax(ops.Div(scores, Constant(np.float32(2)))), v, friendly_name="out")], [q, k, v]
    )
    apply(model, AttentionFusion)
    assert model.node("out").attributes["scale"] == pytest.approx(D**-0.5 / 2)


def test_groups_of_queries_share_keys(apply: Apply) -> None:
    q, k, v = Parameter(f32, [B, 4, S, D], "q"), Parameter(f32, [B, 2, T, D], "k"), Parameter(f32, [B, 2, T, D], "v")

    def repeated(x: Node) -> Node:
        wide = ops.Expand(ops.Unsqueeze(x, Constant([2])), Constant([B, 2, 2, T, D]))
        return ops.Reshape(wide, Constant([B, 4, T, D]))

    scores = ops.MatMul(q, ops.Transpose(repeated(k), perm=[0, 1, 3, 2]))
    model = Model([ops.MatMul(ops.Softmax(scores), repeated(v))], [q, k, v])
    assert apply(model, AttentionFusion, GroupedQueryFusion) == {"Attention": 1}


def test_heads_that_are_repeated_in_another_order_stay(apply: Apply) -> None:
    q, k, v = (Parameter(f32, [B, h, S, D], name) for h, name in ((4, "q"), (2, "k"), (2, "v")))

    def tiled(x: Node) -> Node:
        wide = ops.Expand(ops.Unsqueeze(x, Constant([1])), Constant([B, 2, 2, S, D]))
        return ops.Reshape(wide, Constant([B, 4, S, D]))

    model = Model([ops.Attention(q, tiled(k), tiled(v))], [q, k, v])
    assert apply(model, GroupedQueryFusion, modified=False)["Expand"] == 2


def test_heads_are_split_and_joined_by_the_operator(apply: Apply) -> None:
    parameters = [Parameter(f32, ["B", n, H * D], name) for n, name in (("S", "q"), ("T", "k"), ("T", "v"))]
    shape = Constant([0, 0, H, D])
    q, k, v = (ops.Transpose(ops.Reshape(p, shape), perm=[0, 2, 1, 3]) for p in parameters)
    node = ops.Transpose(ops.Attention(q, k, v), perm=[0, 2, 1, 3])
    model = Model([ops.Reshape(node, Constant([0, 0, H * D]), friendly_name="out")], parameters)
    assert apply(model, AttentionHeadsFusion) == {"Attention": 1}
    assert model.node("out").attributes["q_num_heads"] == H


def test_three_projections_become_one_product(apply: Apply) -> None:
    rng = np.random.default_rng(0)
    x = Parameter(f32, ["B", S, 8], "x")
    ends = []
    for name, width in (("q", 4), ("k", 4), ("v", 6)):
        product = ops.MatMul(x, Constant(rng.standard_normal([8, width]).astype("f")))
        biased = ops.Add(Constant(rng.standard_normal(width).astype("f")), product, friendly_name=name)
        ends.append(ops.Relu(biased))
    model = Model(ends, [x])
    assert apply(model, QKVProjectionFusion) == {"MatMul": 1, "Add": 1, "Split": 1, "Relu": 3}


def compressed_weights(rng: np.random.Generator, width: int, *, blocked: bool, zero: bool, bits: int = 4) -> Node:
    kind = i4 if bits == 4 else i8
    shape = (2, width) if blocked else (width,)
    codes = [rng.integers(-8, 8, dims).astype(kind.numpy) for dims in ((8, width), shape)]
    scale = Constant(rng.uniform(0.1, 1, shape).astype("f"))
    operands = [Constant(codes[0]), scale, *([Constant(codes[1])] if zero else [])]
    return ops.create("DequantizeLinear", operands, {"axis": 0, "block_size": 4} if blocked else {"axis": 1})


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("blocked", [False, True])
def test_three_projections_with_compressed_weights_become_one(blocked: bool, zero: bool, apply: Apply) -> None:
    rng, x = np.random.default_rng(0), Parameter(f32, ["B", S, 8], "x")
    products = [ops.MatMul(x, compressed_weights(rng, width, blocked=blocked, zero=zero)) for width in (4, 4, 6)]
    products[0] = ops.Add(products[0], Constant(rng.standard_normal(4).astype("f")))
    model = Model([ops.Relu(product) for product in products], [x])
    before = model.clone()
    joined = {"DequantizeLinear": 1, "MatMul": 1, "Add": 1, "Split": 1, "Relu": 3}
    assert apply(model, QKVProjectionFusion) == joined
    check_equivalence(before, model)


def test_weights_of_different_forms_are_not_joined(apply: Apply) -> None:
    rng, x = np.random.default_rng(0), Parameter(f32, ["B", S, 8], "x")
    weights = [
        compressed_weights(rng, 4, blocked=True, zero=True),
        compressed_weights(rng, 4, blocked=True, zero=False),
        compressed_weights(rng, 4, blocked=False, zero=True),
        compressed_weights(rng, 4, blocked=True, zero=True, bits=8),
        Constant(np.ones((8, 4), "f")),
        ops.DequantizeLinear(Constant(np.ones((8, 4), np.int8)), Constant(np.float32(1))),
    ]
    model = Model([ops.Relu(ops.MatMul(x, each)) for each in weights], [x])
    apply(model, QKVProjectionFusion, modified=False)


def test_products_of_quantized_values_are_not_joined(apply: Apply) -> None:
    rng, codes = np.random.default_rng(0), Parameter(i8, ["B", S, 8], "x")
    x = ops.DequantizeLinear(codes, Constant(np.float32(0.1)))
    weights = [compressed_weights(rng, 4, blocked=False, zero=False, bits=8) for _ in range(3)]
    model = Model([ops.Relu(ops.MatMul(x, each)) for each in weights], [codes])
    apply(model, QKVProjectionFusion, modified=False)


@pytest.mark.parametrize("kind", ["unknown rank", "stacked weights", "weights from outside", "another domain"])
def test_products_that_are_no_projections_stay(kind: str) -> None:
    x = Parameter(f32, None if kind == "unknown rank" else [2, S, 8], "x")
    shape = (2, 8, 4) if kind == "stacked weights" else (8, 4)
    weights: list[Node] = [Constant(np.full(shape, i, "f")) for i in range(3)]
    parameters = [Parameter(f32, shape, f"w{i}") for i in range(3)] if kind == "weights from outside" else []
    if kind == "another domain":
        products = [Node("MatMul", [x, each], domain="com.example", types=[x.type]) for each in weights]
    else:
        products = [ops.MatMul(x, each) for each in parameters or weights]
    model = Model([ops.Relu(each) for each in products], [x, *parameters])
    manager = Manager()
    manager.register_pass(QKVProjectionFusion)
    assert not manager.run_passes(model)


def test_a_bias_of_more_dimensions_stays_behind_the_product(apply: Apply) -> None:
    x = Parameter(f32, [S, 8], "x")
    ends = []
    for width in (4, 4, 6):
        product = ops.MatMul(x, Constant(np.full([8, width], 0.5, "f")))
        ends.append(ops.Relu(ops.Add(product, Constant(np.ones([1, 1, width], "f")))))
    assert apply(Model(ends, [x]), QKVProjectionFusion) == {"MatMul": 1, "Split": 1, "Add": 3, "Relu": 3}


def test_two_projections_and_network_outputs_stay(apply: Apply) -> None:
    x = Parameter(f32, ["B", S, 8], "x")
    weights = [Constant(np.full([8, 2], i, "f")) for i in range(3)]
    outputs = [ops.MatMul(x, w, friendly_name=f"y{i}") for i, w in enumerate(weights)]
    assert apply(Model(outputs, [x]), QKVProjectionFusion, modified=False)["MatMul"] == 3
    inner = [ops.Relu(ops.MatMul(x, w)) for w in weights[:2]]
    assert apply(Model(inner, [x]), QKVProjectionFusion, modified=False)["MatMul"] == 2


def test_a_callback_can_keep_an_attention_as_it_is() -> None:
    model = attention()
    manager = Manager()
    manager.register_pass(AttentionFusion)
    manager.pass_config.set_callback(AttentionFusion, callback=lambda node: node.friendly_name == "out")
    assert not manager.run_passes(model)
    manager.pass_config.set_callback(AttentionFusion, callback=lambda node: 1 / 0 > 1)
    with pytest.raises(PassError, match="AttentionFusion failed at MatMul `out`"):
        manager.run_passes(model)


@pytest.mark.parametrize("scaled", ["q", "k", "v"])
def test_a_number_before_the_heads_are_split_joins_the_scale(scaled: str, apply: Apply) -> None:
    """Whisper multiplies queries so; a number that the values are multiplied with stays."""
    x = Parameter(f32, [B, S, H * D], "x")

    def heads(name: str) -> Node:
        rows = ops.Mul(x, Constant(0.125)) if name == scaled else x
        return ops.Transpose(ops.Reshape(rows, Constant(np.array([B, S, H, D]))), perm=[0, 2, 1, 3])

    attended = ops.Attention(heads("q"), heads("k"), heads("v"), scale=0.5)
    result = ops.Reshape(ops.Transpose(attended, perm=[0, 2, 1, 3]), Constant(np.array([B, S, H * D])))
    model = Model([result], [x])
    counts = apply(model, AttentionHeadsFusion)
    node = next(node for node in model.ordered_nodes() if node.op_type == "Attention")
    assert (counts["Mul"], node.attributes["scale"]) == ((1, 0.5) if scaled == "v" else (0, 0.0625))


def test_a_projection_without_a_bias_joins_those_that_have_one(apply: Apply) -> None:
    x = Parameter(f32, ["N", 8], "x")
    rng = np.random.default_rng(0)
    products = [ops.MatMul(x, Constant(rng.standard_normal((8, n)).astype("f"))) for n in (4, 5, 6)]
    sums = [ops.Add(products[i], Constant(rng.standard_normal(n).astype("f"))) for i, n in ((0, 4), (2, 6))]
    model = Model([ops.Relu(value) for value in (sums[0], products[1], sums[1])], [x])
    counts = apply(model, QKVProjectionFusion)
    assert counts == {"MatMul": 1, "Add": 1, "Split": 1, "Relu": 3}


def windowed(
    mask: Any, *, images: int = 2, windows: int = 3, split: list[int] | None = None, reads: bool = False
) -> Model:
    """Scores of windows, to which a bias for each head and a mask for each window are added."""
    q, k, v = (Parameter(f32, [images * windows, H, S, D], name) for name in "qkv")
    rng = np.random.default_rng(0)
    biased = ops.Add(ops.MatMul(q, ops.Transpose(k, perm=[0, 1, 3, 2])), Constant(rng.random((1, H, S, S), np.float32)))
    apart = ops.Reshape(biased, Constant(split or [images, windows, H, S, S]))
    added = ops.Add(apart, Constant(np.asarray(mask, np.float32)))
    whole = ops.Reshape(added, Constant([images * windows, H, S, S]))
    outputs = [ops.MatMul(ops.Softmax(whole), v, friendly_name="out").output(0)]
    return Model([*outputs, *([added.output(0)] if reads else [])], [q, k, v])


MASK = np.where(np.random.default_rng(1).random((3, S, S)) < 0.4, -100.0, 0.0)


@pytest.mark.parametrize(
    ("mask", "shape"),
    [
        (MASK[None, :, None], [6, 1, S, S]),
        (MASK[:, None], [6, 1, S, S]),
        (np.broadcast_to(MASK[None, :, None], (2, 3, H, S, S)), [6, H, S, S]),
        (MASK[:1], [6, 1, S, S]),
        (np.float32(-1), [6, 1, 1, 1]),
    ],
    ids=["windows", "windows-without-images", "all", "one-mask", "number"],
)
def test_masks_of_windows_are_added_to_the_scores(mask: Any, shape: list[int], apply: Apply) -> None:
    model = windowed(mask)
    assert apply(model, WindowMaskSinking)["Reshape"] == 0
    constants = [v.node for n in model.ordered_nodes() for v in n.input_values if v and isinstance(v.node, Constant)]
    assert shape in [list(constant.shape) for constant in constants]


@pytest.mark.parametrize("change", ["other-split", "read-elsewhere"])
def test_masks_of_other_reshapes_stay(change: str, apply: Apply) -> None:
    other = change == "other-split"
    model = windowed(0.5, split=[6, 1, H * S, S]) if other else windowed(MASK[:, None], reads=True)
    assert apply(model, WindowMaskSinking, modified=False)["Reshape"] == 2


def test_masks_are_not_repeated_for_many_images(apply: Apply) -> None:
    """A blob would grow by a constant as large as all scores."""
    manager = Manager()
    manager.register_pass(WindowMaskSinking)
    assert not manager.run_passes(windowed(MASK[:, None], images=1 << 17))


def two_masks(first: Any, second: Any, *, product: bool = True) -> Model:
    q, k = Parameter(f32, [B, H, S, D], "q"), Parameter(f32, [B, H, D, T], "k")
    parameters = [q, k]
    scores: Node = ops.MatMul(q, k) if product else Parameter(f32, [B, H, S, T], "scores")
    if not product:
        parameters = [scores]  # type: ignore[list-item]
    for mask in (first, second):
        if isinstance(mask, Parameter):
            parameters.append(mask)
        scores = ops.Add(scores, mask if isinstance(mask, Node) else Constant(np.asarray(mask, np.float32)))
    return Model([ops.Softmax(scores, friendly_name="out")], parameters)


def test_two_masks_become_one(apply: Apply) -> None:
    bias = np.random.default_rng(0).random((1, H, S, T))
    model = two_masks(bias, Parameter(f32, [B, 1, 1, T], "mask"))
    assert apply(model, AttentionBiasMerging)["Add"] == 2
    (softmax,) = (node for node in model.ordered_nodes() if node.op_type == "Softmax")
    assert any(
        value is not None and value.node.op_type == "MatMul" for value in softmax.input_value(0).node.input_values
    )


def test_sums_of_masks_that_would_be_large_constants_stay(apply: Apply) -> None:
    wide = Parameter(f32, [300, 64, 16, 16], "x")
    scores = ops.MatMul(wide, ops.Identity(wide))
    rng = np.random.default_rng(0)
    for shape in ([1, 64, 16, 16], [300, 1, 16, 16]):
        scores = ops.Add(scores, Constant(rng.random(shape, np.float32)))
    model = Model([ops.Softmax(scores)], [wide])
    manager = Manager()
    manager.register_pass(AttentionBiasMerging)
    assert not manager.run_passes(model)


def test_sums_that_are_not_scores_stay(apply: Apply) -> None:
    apply(two_masks(1.0, 2.0, product=False), AttentionBiasMerging, modified=False)
    apply(two_masks(Parameter(f32, [3, B, H, S, T], "mask"), 2.0), AttentionBiasMerging, modified=False)
