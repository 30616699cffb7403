"""Arithmetic operators of `ai.onnx.ml` as ONNX's own, for `OperatorDecomposition`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, f32, f64, i32, i64
from engine.ops import attribute


def _array_feature_extractor(node: Node) -> Sequence[Output] | None:
    """Features by index along the last axis; the result has at least two dimensions."""
    x, indices = node.input_value(0), node.input_value(1)
    if not len(x.shape):
        return None
    flat = ops.Reshape(indices, Constant(np.array([-1], np.int64)))
    taken = ops.Gather(x, flat, axis=-1)
    if len(x.shape) == 1:
        return [ops.Unsqueeze(taken, Constant(np.array([0], np.int64))).output(0)]
    return [taken.output(0)]


def _binarizer(node: Node) -> Sequence[Output] | None:
    x = node.input_value(0)
    if x.element_type is not f32:
        return None
    is_above = ops.Greater(x, Constant(float(attribute(node, "threshold")), f32))
    return [ops.Cast(is_above, to=f32).output(0)]


def _scaler(node: Node) -> Sequence[Output] | None:
    x = _real(node.input_value(0))
    offset, scale = attribute(node, "offset"), attribute(node, "scale")
    moved = ops.Sub(x, Constant(np.array(offset or [0.0], np.float32)))
    return [ops.Mul(moved, Constant(np.array(scale or [1.0], np.float32))).output(0)]


def _normalizer(node: Node) -> Sequence[Output] | None:
    """Of other types, rows of f32."""
    x = node.input_value(0)
    if x.element_type is f32:
        return None
    return [ops.create("Normalizer", [_real(x)], node.attributes, domain="ai.onnx.ml").output(0)]


def _imputer(node: Node) -> Sequence[Output] | None:
    from engine.ops.classical_specs import ImputerSpec  # with its family

    spec, x = ImputerSpec.of(node), node.input_value(0)
    if x.element_type not in (f32, f64, i64, i32):
        return None
    dtype = x.element_type.numpy
    replaced = spec.replaced_value_float if dtype.kind == "f" else spec.replaced_value_int64
    imputed = Constant(np.asarray(spec.imputed).astype(dtype))
    is_missing = ops.IsNaN(x) if replaced != replaced else ops.Equal(x, Constant(np.asarray(replaced).astype(dtype)))
    return [ops.Where(is_missing, imputed, x).output(0)]


def _feature_vectorizer(node: Node) -> Sequence[Output] | None:
    values = [node.input_value(index) for index in range(node.num_inputs)]
    if any(len(value.shape) != 2 for value in values):
        return None
    return [ops.Concat(*map(_real, values), axis=1).output(0)]


def _one_hot_encoder(node: Node) -> Sequence[Output] | None:
    """Numbers that may lack a category."""
    categories, x = attribute(node, "cats_int64s"), node.input_value(0)
    if not categories or not attribute(node, "zeros") or x.element_type not in (i64, i32, f32):
        return None
    whole = x if x.element_type is i64 else ops.Cast(x, to=i64).output(0)
    wide = ops.Unsqueeze(whole, Constant(np.array([-1], np.int64)))
    return [ops.Cast(ops.Equal(wide, Constant(np.array(categories, np.int64))), to=f32).output(0)]


def _classifier_of_text(node: Node) -> Sequence[Output] | None:
    """The position of the label, and the text there."""
    names = attribute(node, "classlabels_strings")
    if not names:
        return None
    kept = {name: value for name, value in node.attributes.items() if name != "classlabels_strings"}
    kept["classlabels_ints"] = tuple(range(len(names)))
    found = ops.create(node.op_type, [node.input_value(0)], kept, num_outputs=2, domain="ai.onnx.ml")
    label = ops.Gather(Constant(np.array(names, object)), found.output(0), axis=0)
    return [label.output(0), found.output(1)]


def _linear_regressor(node: Node) -> Sequence[Output] | None:
    x, targets = node.input_value(0), int(attribute(node, "targets"))
    coefficients, intercepts = attribute(node, "coefficients"), attribute(node, "intercepts")
    post = attribute(node, "post_transform")
    if len(x.shape) != 2 or not coefficients or len(coefficients) % targets or post not in ("NONE", "LOGISTIC"):
        return None
    weights = np.array(coefficients, np.float32).reshape(targets, -1)
    scores = ops.MatMul(_real(x), Constant(np.ascontiguousarray(weights.T))).output(0)
    if intercepts:
        scores = ops.Add(scores, Constant(np.array(intercepts, np.float32))).output(0)
    return [ops.Sigmoid(scores).output(0) if post == "LOGISTIC" else scores]


def _label_encoder(node: Node) -> Sequence[Output] | None:
    """A few numbers by equality; the operator's tables of text stay."""
    from engine.ops.label_encoder import LabelEncoderSpec  # with its family

    spec, x = LabelEncoderSpec.of(node), node.input_value(0)
    is_numeric = x.element_type in (f32, i64, i32) and spec.values.dtype != object
    if not is_numeric or not 0 < len(spec.keys) <= _MAX_KEYS:
        return None
    result = ops.Expand(Constant(np.asarray(spec.default, spec.values.dtype)), ops.Shape(x)).output(0)
    for key, value in zip(spec.keys, spec.values, strict=True):
        is_key = ops.Equal(x, Constant(np.asarray(key))) if key == key else ops.IsNaN(x)
        result = ops.Where(is_key, Constant(np.asarray(value)), result).output(0)
    return [result]


def _real(x: Output) -> Output:
    return x if x.element_type is f32 else ops.Cast(x, to=f32).output(0)


_MAX_KEYS: Final = 32

CLASSICAL_RULES: Final[dict[str, Callable[[Node], Sequence[Output] | None]]] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _feature_vectorizer,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _classifier_of_text,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot_encoder,
    "SVMClassifier": _classifier_of_text,
    "Scaler": _scaler,
}
