"""What breaks if these fail: TEMPLATE's results, the reference for every device, are wrong or not reproducible."""

import math
import threading
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.errors import InputError, ModelError, UnsupportedError
from engine.ir import (
    Constant,
    ElementType,
    MapType,
    Model,
    Node,
    OptionalType,
    Parameter,
    PartialShape,
    SequenceType,
    TensorType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    string,
)
from engine.ir.element_type import f4e2m1, f8e4m3fn, f8e8m0, i4, u4
from engine.ops import reference


def run(op_type: str, *arrays: object, domain: str = "", outputs: int | None = None, **attributes: object) -> object:
    """Evaluate one node; the only output, or a tuple of them."""
    inputs = [None if a is None else Parameter(ElementType.from_numpy(a.dtype), a.shape) for a in arrays]  # type: ignore[attr-defined]
    node = ops.create(op_type, inputs, attributes, domain=domain, num_outputs=outputs)
    values = ops.evaluate(node, arrays)
    return values if len(values) > 1 else values[0]


def f(*values: object) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_every_operator_can_be_evaluated() -> None:
    """Whatever TEMPLATE accepts it must be able to run: only what differentiates a graph has no evaluation."""
    unsupported = set()
    for op in ops.all_ops():
        if op.evaluator is None:
            try:
                reference.load_onnx_implementation(op.name, op.domain)
            except Exception:
                unsupported.add(str(op))
    assert unsupported == {"ai.onnx.preview.training.Gradient"}


@pytest.mark.parametrize("x", [f([1, 2], [3, 500]), f([-np.inf, -np.inf], [np.inf, 1]), np.zeros((2, 0), np.float32)])
def test_logarithms_of_summed_powers(x: np.ndarray) -> None:
    """Of numbers whose powers overflow, of infinities, and of nothing."""
    expected = np.logaddexp.reduce(x, axis=1, dtype=np.float32)
    np.testing.assert_array_equal(run("ReduceLogSumExp", x, np.array([-1]), keepdims=0), expected)
    np.testing.assert_array_equal(run("ReduceLogSumExp", f(3)[0], keepdims=0), f(3)[0])


def test_resizing_to_coordinates_that_are_whole_but_for_rounding() -> None:
    """Half of 11 elements lie at 1, 3, 5 ...; the first at 1 + 2^-52, whose neighbours are 1 and 2."""
    x = np.arange(11, dtype=np.float32)
    attributes = {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}
    np.testing.assert_array_equal(run("Resize", x, None, f(0.5), **attributes), f(1, 3, 5, 7, 9))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resizing_of_nothing(mode: str) -> None:
    value = run("Resize", np.zeros((0, 3, 4), np.float32), None, None, np.array([6, 2]), mode=mode, axes=(-2, -1))
    assert isinstance(value, np.ndarray)
    assert value.shape == (0, 6, 2)
    with pytest.raises(InputError, match="there are no elements to resize"):
        run("Resize", np.zeros((0, 4), np.float32), None, None, np.array([3, 4]), mode=mode)


def test_attention_to_nothing() -> None:
    """Of no keys, as dynamic lengths may have it."""
    empty = np.zeros((1, 2, 0, 4), np.float32)
    np.testing.assert_array_equal(
        run("Attention", np.ones((1, 2, 3, 4), np.float32), empty, empty), np.zeros((1, 2, 3, 4))
    )


@pytest.mark.parametrize("op_type", ["ReduceSumSquare", "ReduceSum", "ReduceProd", "ReduceL1", "CumSum"])
def test_sums_of_small_integers_keep_their_type(op_type: str) -> None:
    """numpy's are wider; what reads them would be given a type that the model does not state."""
    value = run(op_type, np.array([[3, -4]], np.int32), np.array(1), outputs=1)
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.int32


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(("x", "w", "y"), [((0, 2, 4), (2, 2, 3), (0, 2)), ((3, 0, 4), (0, 0, 3), (3, 0))])
def test_convolutions_of_nothing(op_type: str, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]) -> None:
    """No images, or no channels."""
    result = run(op_type, np.zeros(x, np.float32), np.zeros(w, np.float32))
    assert isinstance(result, np.ndarray)
    assert result.shape == (*y, 2 if op_type == "Conv" else 6)


def test_custom_operators_say_what_to_do() -> None:
    node = Node("Thing", [Parameter(f32, [1])], domain="vendor", friendly_name="t")
    with pytest.raises(UnsupportedError, match=r"Thing `t`: operator 'Thing' of domain 'vendor'.*replace it"):
        ops.compile_node(node)


def test_failures_name_node_and_inputs() -> None:
    node = ops.MatMul(Parameter(f32, [None, None]), Parameter(f32, [None, None]), friendly_name="mm")
    with pytest.raises(InputError, match=r"MatMul `mm` cannot take inputs A float32\[2,3\], B float32\[2,3\]"):
        ops.evaluate(node, [np.zeros((2, 3), np.float32)] * 2)


def test_warnings_do_not_leak() -> None:
    assert np.isnan(run("Log", f(-1.0)))
    assert np.isinf(run("Div", f(1.0), f(0.0)))
    assert run("Cast", f(1e10, math.nan), to=i8).dtype == np.int8  # type: ignore[attr-defined]
    assert np.isposinf(run("Exp", f(1e4)))


def test_inputs_are_not_written() -> None:
    data, indices = np.zeros((3, 3), np.float32), np.array([[0], [2]])
    data.flags.writeable = False
    result = run("ScatterND", data, indices, np.ones((2, 3), np.float32))
    assert result.tolist() == [[1] * 3, [0] * 3, [1] * 3]  # type: ignore[attr-defined]


def test_outputs_have_the_promised_forms() -> None:
    assert isinstance(run("ReduceSum", f(1.0, 2.0), keepdims=0), np.ndarray)
    text = run("StringConcat", np.array(["a", "é"], object), np.array(["b", "c"], object))
    assert (text.dtype, text.tolist()) == (np.dtype(object), ["ab", "éc"])  # type: ignore[attr-defined]
    assert run("Cast", f(1.5), to=string).dtype == object  # type: ignore[attr-defined]
    assert isinstance(run("SequenceConstruct", f(1.0), f(2.0)), list)


def test_optionals() -> None:
    x, empty = Parameter(f32, [1]), Parameter(OptionalType(TensorType(f32, PartialShape([1]))))
    assert ops.evaluate(ops.Optional(x), [f(1.0)])[0].tolist() == [1.0]
    assert ops.evaluate(ops.OptionalHasElement(empty), [None])[0].tolist() is False
    assert ops.evaluate(ops.OptionalHasElement(x), [f(1.0)])[0].tolist() is True
    with pytest.raises(InputError, match="the optional is empty"):
        ops.evaluate(ops.OptionalGetElement(empty), [None])


def test_sequences_are_copied_not_changed() -> None:
    sequence = [f(1.0), f(2.0)]
    s, x = Parameter(SequenceType(TensorType(f32, PartialShape([1])))), Parameter(f32, [1])
    longer = ops.evaluate(ops.SequenceInsert(s, x, Parameter(i64, [])), [sequence, f(9.0), np.array(-2)])[0]
    shorter = ops.evaluate(ops.SequenceErase(s), [sequence])[0]
    assert [v.item() for v in longer] == [9, 1, 2]
    assert [v.item() for v in shorter] == [1]
    assert len(sequence) == 2
    with pytest.raises(InputError, match="position 5 is out of range for a sequence of 2"):
        ops.evaluate(ops.SequenceAt(s, Parameter(i64, [])), [sequence, np.array(5)])


def test_one_evaluator_serves_threads() -> None:
    node = ops.LSTM(Parameter(f32, [4, 2, 3]), Parameter(f32, [1, 8, 3]), Parameter(f32, [1, 8, 2]), hidden_size=2)
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(s).astype(np.float32) for s in ((4, 2, 3), (1, 8, 3), (1, 8, 2))]
    call = ops.compile_node(node)
    expected = call(arrays)[0]
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.extend((call(arrays)[0] == expected).all() for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200
    assert all(results)


# -- where onnx.reference is wrong ---------------------------------------------------------------------------


def test_average_pool_with_ceil_mode_counts_only_what_is_there() -> None:
    x = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)
    attributes = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    assert run("AveragePool", x, **attributes).tolist() == [[[1.5, 3.5, 5.0]]]  # type: ignore[attr-defined]
    padded = run("AveragePool", x, **attributes, pads=[0, 1], count_include_pad=1)
    assert padded.tolist() == [[[1.5, 3.5, 2.5]]]  # type: ignore[attr-defined]


def test_lrn_sums_over_channels() -> None:
    x = np.ones((1, 4, 1, 1), np.float32)
    result = run("LRN", x, size=3, alpha=3.0, beta=1.0, bias=0.0)
    assert np.allclose(result.reshape(-1), [1 / 2, 1 / 3, 1 / 3, 1 / 2])  # type: ignore[attr-defined]


def test_global_pools_of_any_rank() -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    assert run("GlobalMaxPool", x).tolist() == [[[3], [7]]]  # type: ignore[attr-defined]
    assert run("GlobalAveragePool", x).tolist() == [[[1.5], [5.5]]]  # type: ignore[attr-defined]
    assert np.allclose(run("GlobalLpPool", x, p=1), [[[6], [22]]])


def test_recurrent_networks_respect_sequence_lengths() -> None:
    x = np.ones((3, 2, 1), np.float32)
    w = r = np.ones((1, 1, 1), np.float32)
    y, last = run("RNN", x, w, r, None, np.array([1, 3], np.int32), outputs=2, hidden_size=1)  # type: ignore[misc]
    assert y[1:, 0, 0, 0].tolist() == [0, 0]
    assert last[0, 0, 0] == pytest.approx(math.tanh(1))
    assert last[0, 1, 0] == y[2, 0, 1, 0]


def test_quantization_saturates_to_the_right_side() -> None:
    big = f(1e30, -1e30, math.inf, -math.inf, math.nan)
    quantized = run("QuantizeLinear", big, np.float32(0.5).reshape(()), np.array(3, np.int8))
    assert quantized.tolist() == [127, -128, 127, -128, 3]  # type: ignore[attr-defined]


def test_gather_elements_of_more_than_32_rows() -> None:
    data = np.arange(40, dtype=np.float32).reshape(40, 1)
    indices = np.array([[39], [0], [-1]])
    assert run("GatherElements", data, indices, axis=0).tolist() == [[39], [0], [39]]  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"indices 40..40 are out of range for length 40; expected -40..39"):
        run("GatherElements", data, np.array([[40]]), axis=0)


def test_pads_may_cut() -> None:
    assert run("Pad", f(1, 2, 3), np.array([-1, 2])).tolist() == [2, 3, 0, 0]  # type: ignore[attr-defined]


def test_erf_is_exact_to_the_last_places() -> None:
    x = np.concatenate([np.linspace(-7, 7, 3001), [0.0, -0.0, 1e-300, 0.46875, 4.0, 30.0, 1e200, math.inf, -math.inf]])
    got = run("Erf", x)
    expected = np.array([math.erf(v) for v in x])
    assert np.abs(got - expected).max() <= 4 * np.finfo(np.float64).eps  # type: ignore[operator]
    assert np.isnan(run("Erf", f(math.nan)))


def test_narrow_floats_accumulate_in_f32() -> None:
    x = np.full((1, 1, 4096), 0.1, dtype=bf16.numpy)
    assert float(run("GlobalAveragePool", x)[0, 0, 0]) == pytest.approx(0.1, rel=1e-2)  # type: ignore[index]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_softmax_of_what_vanishes(dtype: type) -> None:
    x = np.array([[0, -3, -200], [60000, 60000, -60000]], dtype)
    logarithms = run("LogSoftmax", x)
    exact = x.astype(np.float64) - x.max(1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    with np.errstate(over="ignore"):
        expected = exact.astype(dtype)
    np.testing.assert_allclose(logarithms, expected, rtol=np.finfo(dtype).eps, atol=4 * np.finfo(np.float32).eps)
    shares = run("Softmax", np.zeros((1, 70000), dtype))
    spacing = float(np.finfo(dtype).smallest_subnormal)
    np.testing.assert_allclose(shares, np.full((1, 70000), 1 / 70000), rtol=np.finfo(dtype).eps, atol=spacing)


def test_one_hot_of_more_classes_than_indices_can_name() -> None:
    values = f(0, 1)
    for indices in (np.array([2, 255], np.uint8), np.array([2, -45], np.int8)):
        found = run("OneHot", indices, np.array(300, np.int64), values)
        np.testing.assert_array_equal(np.argmax(found, axis=-1), [2, 255])  # type: ignore[call-overload]
        np.testing.assert_array_equal(np.sum(found, axis=-1), [1, 1])  # type: ignore[call-overload]


def test_attention_gives_zeros_to_a_query_that_sees_nothing() -> None:
    x = np.ones((1, 1, 2, 4), np.float32)
    mask = np.array([[False, False], [True, True]])
    assert run("Attention", x, x, x, mask)[0, 0].tolist() == [[0] * 4, [1] * 4]  # type: ignore[index]


# -- random numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", ["RandomNormal", "RandomUniform"])
def test_a_seed_means_the_same_values(op_type: str) -> None:
    first = run(op_type, shape=[100], seed=3.0)
    assert (first == run(op_type, shape=[100], seed=3.0)).all()  # type: ignore[attr-defined]
    for other in (3.5, -3.0, None):
        assert (first != run(op_type, shape=[100], seed=other)).any()  # type: ignore[attr-defined]


def test_distributions() -> None:
    normal = run("RandomNormal", shape=[20000], mean=3.0, scale=2.0, seed=1.0)
    assert np.mean(normal) == pytest.approx(3, abs=0.1)  # type: ignore[arg-type]
    assert np.std(normal) == pytest.approx(2, abs=0.1)  # type: ignore[arg-type]
    uniform = run("RandomUniformLike", np.zeros(20000, np.float32), low=-1.0, high=3.0, seed=1.0)
    assert np.mean(uniform) == pytest.approx(1, abs=0.1)  # type: ignore[arg-type]
    assert np.mean(run("Bernoulli", np.full(20000, 0.25, np.float32), seed=1.0)) == pytest.approx(0.25, abs=0.02)  # type: ignore[arg-type]
    classes = run("Multinomial", np.log(f(1, 3, 4)).reshape(1, 3), sample_size=20000, seed=1.0, dtype=i64)
    assert np.bincount(classes[0]) / 20000 == pytest.approx([1 / 8, 3 / 8, 4 / 8], abs=0.02)  # type: ignore[index]


def test_dropout() -> None:
    x = np.ones(1000, np.float16)
    y, mask = run("Dropout", x, np.float32(0.25).reshape(()), np.array(True), outputs=2, seed=5)  # type: ignore[misc]
    assert y.dtype == np.float16
    assert 0.65 < mask.mean() < 0.85
    assert set(np.unique(y)) == {0, np.float16(1 / 0.75)}
    assert run("Dropout", x) is x


# -- ai.onnx.ml ----------------------------------------------------------------------------------------------


def test_classical_operators() -> None:
    ml = {"domain": "ai.onnx.ml"}
    x = f(1, 2, 3).reshape(1, 3)
    assert run("Scaler", np.array([[1, 2]]), offset=[1.0], scale=[2.0], **ml).tolist() == [[0, 2]]  # type: ignore[attr-defined]
    assert np.allclose(run("Normalizer", x, norm="L1", **ml), x / 6)
    assert not np.any(run("Normalizer", np.zeros((1, 3), np.float32), norm="L2", **ml))
    assert run("ZipMap", x, classlabels_strings=["a", "b", "c"], **ml) == [{"a": 1, "b": 2, "c": 3}]
    names = {"cats_int64s": [1, 2], "cats_strings": ["a", "b"], "default_int64": 7}
    assert run("CategoryMapper", np.array(["b", "z"], object), **names, **ml).tolist() == [2, 7]  # type: ignore[attr-defined]
    assert ops.evaluate(_cast_map("TO_INT64"), [{3: 1.5, 1: 2.5}])[0].tolist() == [[2, 1]]
    assert np.allclose(run("LinearRegressor", x, coefficients=[1.0, 1.0, 1.0], intercepts=[0.5], **ml), [[6.5]])


def test_scores_of_a_linear_regressor_are_transformed() -> None:
    """With `SOFTMAX_ZERO`, a score of 0 has no share."""
    x = np.array([[1.0, 2.0, 3.0], [1.0, -2.0, 0.0]], np.float32)
    attributes = {"coefficients": [1.0, 0.5, 0.0, 0.0, 0.25, 0.5], "targets": 2}
    scores = np.array([[2.0, 2.0], [0.0, -0.5]])
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    for transform, expected in {
        "NONE": scores,
        "LOGISTIC": 1 / (1 + np.exp(-scores)),
        "SOFTMAX": shares,
        "SOFTMAX_ZERO": np.array([shares[0], [0.0, 1.0]]),
    }.items():
        found = run("LinearRegressor", x, post_transform=transform, domain="ai.onnx.ml", **attributes)
        np.testing.assert_allclose(found, expected, rtol=1e-6)  # type: ignore[arg-type]


def _cast_map(target: str) -> Node:
    from engine.ir import MapType

    x = Parameter(MapType(i64, TensorType(f32, PartialShape([]))))
    return ops.create("CastMap", [x], {"cast_to": target}, domain="ai.onnx.ml")


# -- models ----------------------------------------------------------------------------------------------------


def test_models_take_inputs_by_order_or_name() -> None:
    a, b = Parameter(f32, [2], "a"), Parameter(f32, [2], "b")
    model = Model([ops.Sub(a, b), ops.Neg(ops.Constant(f(1.0)))], [a, b])
    for inputs in ([f(3, 3), f(1, 2)], {"b": f(1, 2), "a": f(3, 3)}):
        difference, constant = ops.evaluate_model(model, inputs)
        assert (difference.tolist(), constant.tolist()) == ([2, 1], [-1])
    with pytest.raises(InputError, match="missing b, unknown c"):
        ops.evaluate_model(model, {"a": f(1, 1), "c": f(1, 1)})
    with pytest.raises(InputError, match="takes 2 inputs, got 1"):
        ops.evaluate_model(model, [f(1, 1)])


def test_a_parameter_may_be_a_result_and_used_twice() -> None:
    x = Parameter(f32, [2], "x")
    model = Model([ops.Add(x, x), ops.Identity(x)], [x])
    double, same = ops.evaluate_model(model, f(1, 2))
    assert (double.tolist(), same.tolist()) == ([2, 4], [1, 2])


def test_values_are_freed_after_their_last_use() -> None:
    x = Parameter(f32, [1000], "x")
    node: Node = x
    for _ in range(20):
        node = ops.Add(node, Constant(f(1.0)))
    evaluator = ops.ModelEvaluator(Model([node], [x]))
    held = [len(dead) for *_, dead in evaluator._steps]
    assert held == [1] * 20
    assert evaluator.run([np.zeros(1000, np.float32)])[0][0] == 20


@pytest.mark.parametrize(("shape", "axis"), [((0, 3, 1), 1), ((2, 0, 3), 2), ((2, 3), 0), ((2, 3, 4), -1), ((5,), 1)])
def test_an_empty_tensor_is_flattened(shape: tuple[int, ...], axis: int) -> None:
    """ONNX's own evaluation asks numpy for the length that zero elements leave open."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (y,) = ops.evaluate(ops.Flatten(Parameter(f32, list(shape), "x"), axis=axis), [x])
    at = axis % len(shape) if axis < 0 else axis
    assert y.shape == (np.prod(shape[:at]), np.prod(shape[at:]))
    np.testing.assert_array_equal(y.ravel(), x.ravel())


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_the_power_of_a_half_is_no_square_root(shape: tuple[int, ...]) -> None:
    """Of -inf it is inf and of -0 it is 0, as IEEE 754's pow has it, and the devices."""
    x = np.array([-np.inf, np.inf, 4, -0.0], np.float32)
    result = run("Pow", x, np.full(shape, 0.5, np.float32))
    expected = np.array([np.inf, np.inf, 2, 0], np.float32).reshape((*shape[1:], 4))
    np.testing.assert_array_equal(result, expected)
    assert not np.signbit(result).any()
    assert run("Pow", np.float32(-np.inf).reshape(()), np.full((), 0.5, np.float32)) == np.inf


def test_what_is_found_not_to_fit_at_inference_is_not_computed() -> None:
    """Lengths that no type rule could know: values of inputs, and shapes that are open when the model is built."""
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    for inputs, attributes, words in (
        (("Tile", data, np.array([2])), {}, "1 repeats do not fit 2 axes"),
        (("CumSum", data, np.array(4)), {}, r"input axis is 4; allowed: -2\.\.1, as the rank is 2"),
        (("Split", data, np.array([1, 1])), {"axis": 1, "outputs": 2}, "do not divide length 3 into 2 parts"),
        (("TopK", data, np.array([2**50])), {"outputs": 2}, r"K is 1125899906842624; expected 3 or less"),
        (("AffineGrid", data[None], np.array([2**50] * 4)), {}, "theta has 1 samples; expected equal numbers"),
        (("Range", f(0)[0], f(math.nan)[0], f(1)[0]), {}, "limit nan and delta 1.0; expected finite numbers"),
        (("Range", f(0)[0], f(1)[0], f(0)[0]), {}, "number of elements is undefined|delta. is 0"),
        (("MaxRoiPool", f(1).reshape(1, 1, 1, 1), f([math.nan] * 5)), {"pooled_shape": [1, 1]}, "batch index nan"),
        (("Reshape", data, np.array([-1, -1])), {}, "may hold one -1"),
    ):
        with pytest.raises(InputError, match=words):
            run(*inputs, **attributes)  # type: ignore[arg-type]
    sizes = [(2, 1, 3, 4), (3, 1, 3, 4), (2, 1, 3, 4)]
    node = ops.Attention(*(Parameter(TensorType(f32, PartialShape([None] * 4))) for _ in sizes))
    with pytest.raises(InputError, match=r"Q \[2,1,3,4\] and K \[3,1,3,4\] have different"):
        ops.evaluate(node, [np.ones(shape, np.float32) for shape in sizes])


def test_split_into_parts_of_one_size_and_of_given_sizes() -> None:
    data = np.arange(7, dtype=np.float32)
    for arrays, outputs in (((data,), 3), ((data, np.array([3, 0, 4])), 3), ((data[:3],), 4)):
        parts = run("Split", *arrays, outputs=outputs, **({} if len(arrays) > 1 else {"num_outputs": outputs}))
        assert isinstance(parts, tuple)
        np.testing.assert_array_equal(np.concatenate(parts), arrays[0])
        wanted = [3, 0, 4] if len(arrays) > 1 else [3, 3, 1] if len(data) == arrays[0].size else [1, 1, 1, 0]
        assert [part.size for part in parts] == wanted


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_negative_numbers_is_exact(approximate: str) -> None:
    """1 + erf(x) cancels below -1: every digit of the small results would be wrong."""
    x = np.linspace(-12, 3, 301).astype(np.float32)
    exact = [_exact_gelu(float(each), approximate) for each in x]
    # f64 is exact to 1e-13 even after the exponential function, so only the last rounding is left.
    np.testing.assert_allclose(run("Gelu", x, approximate=approximate), exact, rtol=2**-23, atol=2**-149)


def _exact_gelu(x: float, approximate: str) -> float:
    if approximate == "none":
        return 0.5 * x * math.erfc(-x / math.sqrt(2))
    return x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def test_gates_that_are_nearly_closed_are_exact() -> None:
    """A gate of 1e-5 that is wrong by the epsilon of 1 makes a hidden state wrong by a thousandth."""
    x = np.linspace(-60, 60, 121).astype(np.float32)
    one = np.ones((1, 1, 1), np.float32)
    found = run("RNN", x.reshape(1, -1, 1), one, 0 * one, hidden_size=1, activations=["Sigmoid"], outputs=2)[1]  # type: ignore[index]
    exact = [1 / (1 + math.exp(-float(each))) for each in x]
    # The roundings of an exponential function, a sum and a quotient.
    np.testing.assert_allclose(found.reshape(-1), exact, rtol=4 * 2**-23)


def test_losses_without_ignored_labels() -> None:
    """Each ignored label leaves the mean, also -1, the default of other libraries; it may be out of range."""
    scores = f([0, -1, -2], [-3, -0.5, -1])
    for label in (-1, 7):
        assert run("NegativeLogLikelihoodLoss", scores, np.array([label, 1]), ignore_index=label) == 0.5
    nothing = run("NegativeLogLikelihoodLoss", scores, np.array([7, 7]), ignore_index=7)
    assert math.isnan(nothing)  # type: ignore[arg-type]
    assert run("NegativeLogLikelihoodLoss", scores, np.array([7, 7]), ignore_index=7, reduction="sum") == 0
    weights = f(4, 0, 1)
    assert run("NegativeLogLikelihoodLoss", scores, np.array([2, 0]), weights) == 14 / 5
    assert run("NegativeLogLikelihoodLoss", np.zeros((0, 3), f32.numpy), np.zeros(0, np.int64), reduction="sum") == 0


def test_losses_of_small_probabilities_and_many_samples() -> None:
    """The logarithm of a probability that is too small for f32, and a mean that f16 cannot add up."""
    loss, logarithms = run("SoftmaxCrossEntropyLoss", f([200, 0]), np.array([1]), outputs=2)  # type: ignore[misc]
    assert loss == 200
    np.testing.assert_array_equal(logarithms, f([0, -200]))
    many = np.full((70000, 1), -1, np.float16)
    assert run("NegativeLogLikelihoodLoss", many, np.zeros(70000, np.int64), ignore_index=5) == 1


def test_sums_of_narrow_numbers() -> None:
    """Sums of f16 and bf16 are rounded once: in their own type, a sum of ones ends at 2048 or 256."""
    for dtype in (np.float16, bf16.numpy):
        ones = np.ones((4096, 2), dtype)
        for op_type in ("ReduceSum", "ReduceL1", "ReduceSumSquare"):
            np.testing.assert_array_equal(run(op_type, ones, np.array([0]), keepdims=0), np.full(2, 4096, dtype))
        np.testing.assert_array_equal(run("ReduceMean", ones, np.array([0]), keepdims=0), np.ones(2, dtype))
        np.testing.assert_array_equal(run("Sum", *[ones[:1] * x for x in (256, 1, 1, 1, 1)]), ones[:1] * 260)


def test_a_range_far_from_zero() -> None:
    """Each number is start + i * delta, not a sum of steps that are rounded to the size of the numbers."""
    found = run("Range", *(np.array(x) for x in (1e8, 1e8 + 1e3, 0.1)))
    np.testing.assert_array_equal(found, 1e8 + np.arange(10000) * 0.1)
    assert run("Range", *(np.array(x) for x in (0, 2**62 + 1, 2**61))).tolist() == [0, 2**61, 2**62]  # type: ignore[attr-defined]
    found = run("Range", *(np.array(x, bf16.numpy) for x in (250, 260, 1)))
    np.testing.assert_array_equal(found, np.arange(250, 260, dtype=np.float32).astype(bf16.numpy))


def test_windows_are_counted_in_f64() -> None:
    """A type of 16 bits has the window's values, not its indices; integers of 8 bits do not count to 3000."""
    for op_type in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        for periodic in (0, 1):
            wide = run(op_type, np.array(3001 - periodic), output_datatype=f64.onnx, periodic=periodic)
            assert wide[1500] == wide.max() == 1  # type: ignore[index]
            for kind in (f16, bf16):
                found = run(op_type, np.array(3001 - periodic), output_datatype=kind.onnx, periodic=periodic)
                np.testing.assert_array_equal(found, wide.astype(kind.numpy))  # type: ignore[attr-defined]
        assert run(op_type, np.array(3000), output_datatype=i8.onnx)[1500] == 1  # type: ignore[index]


@pytest.mark.parametrize("length", [4, 8])
def test_a_window_as_long_as_its_frames(length: int) -> None:
    signal, window = np.ones((1, 8, 1), np.float32), f(*[1] * (12 - length))
    with pytest.raises(InputError, match=f"window has {12 - length} elements; expected {length}, "):
        run("STFT", signal, np.array(2), window, np.array(length))


def test_affine_grids() -> None:
    """Positions of f64 are not rounded to f32; long axes have their length."""
    theta = np.array([[[1, 0.3, 0.1], [0, 1, 0.2]]])
    corners = run("AffineGrid", theta, np.array([1, 1, 2, 3]), align_corners=1)
    np.testing.assert_allclose(corners[0, 0], [[-1.2, -0.8], [-0.2, -0.8], [0.8, -0.8]], rtol=1e-14)  # type: ignore[index]
    edges = run("AffineGrid", theta, np.array([1, 1, 2, 4]))
    np.testing.assert_allclose(edges[0, 1, 3], [0.75 + 0.15 + 0.1, 0.7], rtol=1e-14)  # type: ignore[index]
    long = run("AffineGrid", theta, np.array([1, 1, 1, 25000]), align_corners=1)
    np.testing.assert_allclose(long[0, 0, -1], [0.8, -0.8], rtol=1e-12)  # type: ignore[index]


def test_determinants_of_narrow_numbers() -> None:
    for dtype in (np.float16, bf16.numpy):
        assert run("Det", np.array([[2, 1], [1, 3]], dtype)) == 5
    assert run("Det", np.zeros((2, 0, 0), np.float16)).tolist() == [1, 1]  # type: ignore[attr-defined]


def test_features_of_rank_1_are_a_row() -> None:
    found = run("FeatureVectorizer", np.array([1, 2, 3]), np.array([4, 5]), domain="ai.onnx.ml", inputdimensions=[3, 2])
    np.testing.assert_array_equal(found, f([1, 2, 3, 4, 5]))


def test_adam_updates_several_tensors_in_f64() -> None:
    one, zero = np.array([1 + 1e-12]), np.zeros(1)
    inputs = [np.array(0.0), np.array(1), one, one, zero, zero, zero, zero, zero, zero]
    found = run("Adam", *inputs, domain="ai.onnx.preview.training", outputs=6)
    assert found[0] == found[1] == one  # type: ignore[index]


@pytest.mark.parametrize(
    ("op_type", "attributes", "words"),
    [
        ("DictVectorizer", {}, "int64_vocabulary and string_vocabulary, neither is given"),
        ("DictVectorizer", {"int64_vocabulary": [1], "string_vocabulary": ["a"]}, "both are given"),
        (
            "DictVectorizer",
            {"string_vocabulary": ["a"]},
            "a vocabulary of i64, the keys of the map",
        ),
        ("CastMap", {"cast_to": "TO_BOOL"}, "cast_to is 'TO_BOOL'"),
        ("CastMap", {"map_form": "LOOSE"}, "map_form is 'LOOSE'"),
        ("CastMap", {"map_form": "SPARSE", "max_map": 0}, "max_map is 0; allowed: 1 or more"),
    ],
)
def test_attributes_of_operators_on_maps(op_type: str, attributes: dict[str, Any], words: str) -> None:
    """They are refused where the model is built, not where it runs."""
    given = Parameter(MapType(i64, TensorType(f32, PartialShape([]))))
    with pytest.raises(ModelError, match=words):
        ops.create(op_type, [given], attributes, domain="ai.onnx.ml")


def test_a_missing_string_of_a_map_is_empty() -> None:
    key = Parameter(MapType(i64, TensorType(string, PartialShape([]))))
    node = ops.create("DictVectorizer", [key], {"int64_vocabulary": [1, 2]}, domain="ai.onnx.ml")
    assert ops.evaluate(node, [{1: "x"}])[0].tolist() == ["x", ""]
    assert ops.evaluate(node, [{}])[0].tolist() == ["", ""]


@pytest.mark.parametrize(
    ("source", "target", "values", "wanted"),
    [
        (i32, f8e8m0, [0, 3, 4], [np.nan, 4.0, 4.0]),
        (boolean, f8e8m0, [False, True], [np.nan, 1.0]),
        (i4, u4, [-1, 7], [15, 7]),
        (u4, i4, [15, 7], [-1, 7]),
        (f8e8m0, f4e2m1, [0.5, 4.0, 64.0], [0.5, 4.0, 6.0]),
        (f8e8m0, f8e4m3fn, [0.5, 4.0, 2.0**100], [0.5, 4.0, np.nan]),
    ],
    ids=str,
)
def test_casts_of_narrow_types_without_saturation(source: Any, target: Any, values: Any, wanted: list[float]) -> None:
    given = np.array(values).astype(source.numpy)
    cast = ops.Cast(Parameter(source, [len(values)]), to=target.onnx, saturate=0)
    (found,) = ops.evaluate(cast, [given])
    assert found.dtype == target.numpy
    np.testing.assert_array_equal(found.astype(np.float64), wanted)


def test_running_sums_of_narrow_numbers_are_rounded_once() -> None:
    """In their own type, a running sum of ones ends at 2048 in f16, and at 256 in bf16."""
    for element_type in (f16, bf16):
        ones, axis = np.ones(3000, element_type.numpy), np.array(0)
        np.testing.assert_array_equal(run("CumSum", ones, axis), np.arange(1, 3001).astype(element_type.numpy))
        factors = np.full(60, 1.0625, element_type.numpy)
        np.testing.assert_array_equal(
            run("CumProd", factors, axis), (1.0625 ** np.arange(1, 61)).astype(np.float32).astype(element_type.numpy)
        )


def test_scores_and_products_of_f16_may_exceed_it_within_an_operator() -> None:
    """As on devices that compute in f32: the result is finite, so a step of it must not be infinite."""
    large = np.full((1, 1, 2, 64), 200, np.float16)
    y = run("Attention", large, large, np.ones((1, 1, 2, 64), np.float16))
    np.testing.assert_array_equal(y, np.ones((1, 1, 2, 64), np.float16))
    row = np.full((1, 64), 200, np.float16)
    assert run("Gemm", row, row, transB=1, alpha=1 / 64) == np.float16(40_000)
    x, table = np.full((1, 1, 1, 2), 300, np.float16), np.full((1, 1, 1), 300, np.float16)
    np.testing.assert_array_equal(np.asarray(run("RotaryEmbedding", x, table, table)).ravel(), [0, np.inf])


def _mel(bins: int, length: int, rate: int, low: float, high: float, dtype: object = np.float32) -> np.ndarray:
    whole = [np.array(value, np.int64) for value in (bins, length, rate)]
    result = run("MelWeightMatrix", *whole, np.array(low, dtype), np.array(high, dtype))
    assert isinstance(result, np.ndarray)
    return result


@pytest.mark.parametrize("dtype", [np.float16, bf16.numpy, np.float32, np.float64])
def test_mel_weights_are_computed_in_f64(dtype: object) -> None:
    """Each column is a triangle with a peak of 1 between frequencies that are equally far apart on the mel scale."""
    weights = _mel(40, 512, 16000, 128.0, 7680.0, dtype)
    mel = 2595 * np.log10(1 + np.array([128.0, 7680.0]) / 700)
    points = mel[0] + np.arange(42) * (mel[1] - mel[0]) / 42
    places = np.floor(513 * 700 * (10 ** (points / 2595) - 1) / 16000).astype(int)
    assert (weights.shape, weights.dtype) == ((257, 40), np.float32)
    for column, (low, centre, high) in enumerate(zip(places, places[1:], places[2:], strict=False)):
        assert weights[centre, column] == 1
        assert set(np.flatnonzero(weights[:, column])) <= {centre, *range(low + 1, high)}


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 9000), (-300, 4000), (4000, 100), (math.nan, 4000), (0, math.nan), (0, math.inf), (-math.inf, 0)],
)
def test_mel_edges_beyond_the_spectrum_are_named(low: float, high: float) -> None:
    """A negative bin is one from the end for `onnx.reference`, and edges in the wrong order give zeros."""
    words = rf"MelWeightMatrix `.*`.*lower_edge_hertz is {low:g} and upper_edge_hertz {high:g}.* up to 4096 Hz"
    with pytest.raises(InputError, match=words):
        _mel(8, 16, 8192, low, high)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [([0, -1], (0, 60)), ([0, 0, -1], (0, 20, 3)), ([0, 4, -1, 5], (0, 4, 3, 5)), ([-1, 0], (0, 20)), ([0, 7], (0, 7))],
)
def test_the_rest_of_a_reshape_of_no_samples(shape: list[int], wanted: tuple[int, ...]) -> None:
    """It is the same for any number of samples: the lengths that a 0 copies do not affect it."""
    data = np.zeros((0, 20, 3), np.float32)
    assert np.shape(run("Reshape", data, np.array(shape))) == wanted
    assert ops.Reshape(Parameter(f32, data.shape), Constant(np.array(shape))).output(0).shape == wanted
    with pytest.raises(InputError, match=r"the -1 of shape .* is not determined"):
        run("Reshape", data, np.array([0, -1]), allowzero=1)


def test_an_unpooled_result_has_the_shape_that_was_pooled() -> None:
    """Also if several shapes are pooled to the same, which is what `output_shape` is for."""
    for length, attributes in ((5, {}), (4, {}), (3, {"ceil_mode": 1})):
        data = np.random.default_rng(1).permutation(2 * length * length).reshape(1, 2, length, length)
        data = data.astype(np.float32) + 1
        pooled, indices = run("MaxPool", data, kernel_shape=[2, 2], strides=[2, 2], outputs=2, **attributes)  # type: ignore[misc]
        found = run(
            "MaxUnpool", pooled, indices, np.array(data.shape), kernel_shape=[2, 2], strides=[2, 2], pads=[0, 1, 0, 1]
        )
        np.testing.assert_array_equal(found, np.where(np.isin(data, pooled), data, 0))
    for shape, words in (([2, 2, 3, 3], r"output_shape is \[2, 2, 3, 3\]; expected \[1, 2"), ([1, 2, 2, 2], "index")):
        with pytest.raises(InputError, match=words):
            run("MaxUnpool", pooled, indices, np.array(shape), kernel_shape=[2, 2], strides=[2, 2])
