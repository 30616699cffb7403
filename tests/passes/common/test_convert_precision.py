"""`ConvertPrecision`: a model of f32 computes in f16, except for values that f16 cannot hold.

If it fails, users who ask for half precision get infinities, wrong positions or indices, or no speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, Model, Node, Parameter, Result, f32
from engine.ir.element_type import ElementType, boolean, f16, f64, i64
from engine.ops import evaluate_model
from engine.passes import Manager
from engine.passes.common.convert_precision import ConvertPrecision
from engine.passes.common.precision_rules import KEEP_PRECISION

WEIGHTS = np.random.default_rng(0).standard_normal((8, 8), np.float32)


def const(value: Any) -> Constant:
    return Constant(np.asarray(value, np.float32))


def product(x: Any) -> Node:
    return ops.MatMul(x, const(WEIGHTS))


def converted(result: Node, *parameters: Parameter, **options: Any) -> Model:
    """The model after the pass, run with all checks; a second run changes nothing."""
    model = Model([Result(result)], parameters)
    manager = Manager(checked=True)
    manager.register_pass(ConvertPrecision(**options))
    assert manager.run_passes(model)
    assert not manager.run_passes(model)
    assert all(value.element_type is f32 for value in model.outputs)
    return model


def types(model: Model) -> dict[str, ElementType]:
    """The element type of the first output of each operation by its name, without the casts of outputs."""
    return {
        n.friendly_name.removesuffix(".f16"): n.output(0).element_type
        for n in model.ordered_nodes()
        if n.num_outputs and not (n.op_type == "Cast" and isinstance(n.output(0).target_inputs[0].node, Result))
    }


def named(node: Node, name: str) -> Node:
    node.friendly_name = name
    return node


def input_of(*shape: int | str, element_type: ElementType = f32) -> Parameter:
    return Parameter(element_type, list(shape), "x")


def test_the_inside_is_f16_and_the_outside_f32() -> None:
    x = input_of(4, 8)
    model = converted(named(ops.Relu(named(product(x), "product")), "relu"), x)
    assert [n.op_type for n in model.ordered_nodes() if not isinstance(n, (Constant, Parameter, Result))] == [
        "Clip", "Cast", "MatMul", "Relu", "Cast",
    ]  # fmt: skip
    assert types(model)["product"] is types(model)["relu"] is f16
    weights = next(n for n in model.ordered_nodes() if isinstance(n, Constant) and n.output(0).shape.size() == 64)
    np.testing.assert_array_equal(weights.data, WEIGHTS.astype(np.float16))


def test_a_constant_of_many_readers_is_converted_once() -> None:
    x, weights = input_of(4, 8), const(WEIGHTS)
    model = converted(ops.MatMul(ops.MatMul(x, weights), weights), x)
    assert sum(isinstance(n, Constant) and n.output(0).element_type is f16 for n in model.ordered_nodes()) == 1


def run(model: Model, *values: Any) -> np.ndarray:
    (found,) = evaluate_model(model, list(values))
    return np.asarray(found)


def test_what_enters_is_kept_in_range() -> None:
    """A mask of -3.4e38, or of -inf, makes no NaN of a row that is masked as a whole; NaN stays."""
    x, mask = input_of(3, 8), Parameter(f32, [3, 8], "mask")
    model = converted(ops.Softmax(ops.Add(product(x), mask), axis=-1), x, mask)
    masks = np.stack([np.full(8, value, np.float32) for value in (-3.4e38, -np.inf, np.nan)])
    found = run(model, np.zeros((3, 8), np.float32), masks)
    np.testing.assert_allclose(found[:2], 1 / 8, rtol=2**-10)
    assert np.isnan(found[2]).all()


# -- what stays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "stays"), [(-1e9, True), (1e-12, True), (-np.inf, False), (0.0, False), (3.0, False)]
)
def test_constants_that_f16_cannot_hold_keep_their_readers(number: float, stays: bool) -> None:
    """A mask value, and an epsilon that would vanish."""
    x = input_of(4, 8)
    added = named(ops.Add(product(x), const(number)), "added")
    model = converted(product(added), x)
    assert types(model)["added"] is (f32 if stays else f16)


def test_limits_beyond_the_range_of_f16_are_none() -> None:
    x = input_of(4, 8)
    model = converted(named(ops.Clip(product(x), const(0), const(3.4e38)), "clip"), x)
    assert types(model)["clip"] is f16
    assert run(model, np.ones((4, 8), np.float32)).max() < 100


def test_a_norm_that_is_spelled_out_squares_in_f32() -> None:
    """Squares of numbers above 256 are infinite in f16. The root is moderate again, and later operations are in f16."""
    x = input_of(4, 8)
    value = product(x)
    square = named(ops.Pow(value, const(2)), "square")
    mean = named(ops.ReduceMean(square, Constant(np.array([-1]))), "mean")
    root = named(ops.Sqrt(named(ops.Add(mean, const(1e-5)), "shifted")), "root")
    result = product(named(ops.Div(value, root), "normed"))
    model = converted(result, x)
    found = types(model)
    assert all(found[name] is f32 for name in ("square", "mean", "shifted", "root"))
    assert found["normed"] is f16
    feed = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32) * 500
    assert np.isfinite(run(model, feed)).all()


@pytest.mark.parametrize("make", [ops.Exp, ops.Cosh, ops.Sinh])
def test_what_grows_like_an_exponential_is_f32_until_it_is_moderate_again(make: Callable[..., Node]) -> None:
    x = input_of(4, 8)
    grown = named(make(product(x)), "grown")
    model = converted(product(named(ops.Asinh(named(ops.Neg(grown), "negated")), "moderate")), x)
    found = types(model)
    assert found["grown"] is found["negated"] is f32
    assert types(converted(product(named(ops.Neg(ops.Asinh(grown)), "after")), x))["after"] is f16


def test_a_sum_of_exponentials_is_as_large_as_the_largest() -> None:
    x = input_of(4, 8)
    grown = ops.Exp(product(x))
    total = named(ops.Neg(ops.ReduceLogSumExp(grown, Constant(np.array([1])))), "total")
    assert types(converted(product(ops.Div(grown, total)), x))["total"] is f32


def test_a_product_with_itself_is_a_square() -> None:
    x = input_of(4, 8)
    value = product(x)
    model = converted(product(named(ops.Sqrt(named(ops.Mul(value, value), "square")), "root")), x)
    assert types(model)["square"] is types(model)["root"] is f32


def test_positions_are_exact() -> None:
    """Angles of positions above 2048 would be wrong; the product with the sine is f16."""
    x, ids = input_of(4, 8), Parameter(i64, [4, 8], "ids")
    angle = named(ops.Mul(named(ops.Cast(ids, to=f32.onnx), "position"), const(0.1)), "angle")
    sine = named(ops.Sin(angle), "sine")
    model = converted(named(ops.Mul(product(x), sine), "turned"), x, ids)
    found = types(model)
    assert all(found[name] is f32 for name in ("position", "angle", "sine"))
    assert found["turned"] is f16


def test_indices_are_exact() -> None:
    x = input_of(4, 8)
    scaled = named(ops.Floor(named(ops.Mul(product(x), const(1000)), "scaled")), "floor")
    model = converted(ops.Cast(ops.Cast(scaled, to=i64.onnx), to=f32.onnx), x)
    assert types(model)["scaled"] is types(model)["floor"] is f32


def test_truth_is_no_index() -> None:
    x = input_of(4, 8)
    model = converted(ops.Cast(ops.Cast(named(ops.Relu(product(x)), "relu"), to=boolean.onnx), to=f32.onnx), x)
    assert types(model)["relu"] is f16


def test_scales_of_a_resize_stay() -> None:
    x = Parameter(f32, [1, 3, 6, 6], "x")
    convolution = ops.Conv(x, const(np.ones((3, 3, 1, 1))))
    resize = named(ops.Resize(convolution, None, const([1, 1, 1.7, 1.7]), mode="linear"), "resize")
    model = converted(resize, x)
    assert types(model)["resize"] is f16
    made = next(n for n in model.ordered_nodes() if n.op_type == "Resize")
    assert made.input_value(2).element_type is f32


def test_quantization_stays() -> None:
    x = input_of(4, 8)
    quantized = ops.QuantizeLinear(product(x), const(0.1), Constant(np.array(0, np.int8)))
    model = converted(named(ops.DequantizeLinear(quantized, const(0.1), Constant(np.array(0, np.int8))), "back"), x)
    assert types(model)["back"] is f32


def test_a_node_may_ask_to_stay_and_a_device_to_keep_it() -> None:
    x = input_of(4, 8)
    relu = named(ops.Relu(product(x)), "relu")
    relu.rt_info[KEEP_PRECISION] = True
    model = converted(product(named(ops.Tanh(relu), "tanh")), x, accepts=lambda node: node.op_type != "Tanh")
    assert types(model)["relu"] is types(model)["tanh"] is f32


def test_elementwise_models_stay() -> None:
    """There is nothing to gain between an input and an output of f32."""
    x = input_of(4, 8)
    model = Model([Result(ops.Relu(ops.Transpose(x, perm=[1, 0])))], [x])
    assert not ConvertPrecision().run_on_model(model)


def test_known_shapes_and_names_are_kept() -> None:
    """An importer knows shapes that no operator tells; users know outputs by their names."""
    x = Parameter(f32, ["N", 8], "x")
    value = named(ops.Reshape(product(x), Parameter(i64, [2], "shape")), "reshaped")
    shape = value.input_value(1).node
    assert isinstance(shape, Parameter)
    value.set_output_type(0, value.output(0).type)
    model = converted(product(value), x, shape)
    assert model.outputs[0].element_type is f32
    assert [p.friendly_name for p in model.parameters] == ["x", "shape"]


def test_other_targets_are_refused() -> None:
    with pytest.raises(PassError, match="target is f64; expected f16"):
        ConvertPrecision(f64)
