"""`ai.onnx.ml`: type rules that ONNX lacks, and evaluation of the operators on maps and categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import ModelError, UnsupportedError
from engine.ir import ElementType, Node, PartialShape, TensorType, ValueType, as_dimension, f32, i64, string
from engine.ops.classical_specs import DictVectorizerSpec, ImputerSpec, OneHotEncoderSpec
from engine.ops.cost import CALL, attribute_length, lengths_of, more_time
from engine.ops.precision import truncated
from engine.ops.reference import compile_onnx
from engine.ops.registry import Evaluator, attribute, compiles, evaluates, get_op, infers
from engine.ops.rules import check_inputs, tensor_type
from engine.ops.spec import evaluates_with_spec
from engine.ops.tensors import Array
from engine.ops.traits import declare

_ML: Final = "ai.onnx.ml"


declare("FeatureVectorizer", "OneHotEncoder", domain=_ML, inflates=True)


@infers("Imputer", domain=_ML)
def _infer_same(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type, _ML))
    return (tensor_type(node, 0),)


@infers("Normalizer", "Scaler", domain=_ML)
def _infer_float(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type, _ML))
    return (TensorType(f32, tensor_type(node, 0).shape),)


@infers("LinearRegressor", "SVMRegressor", domain=_ML)
def _infer_regressor(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type, _ML))
    data = tensor_type(node, 0).shape
    targets = attribute(node, "targets") if node.op_type == "LinearRegressor" else 1
    rows = as_dimension(None)
    if data.rank.is_static:
        rows = data[0] if len(data) > 1 else as_dimension(1)
    return (TensorType(f32, PartialShape([rows, targets])),)


@infers("LinearClassifier", "SVMClassifier", domain=_ML)
def _infer_classifier(node: Node) -> Sequence[ValueType]:
    """ONNX gives a LinearClassifier no columns. An SVMClassifier has those of its votes, if it has support vectors."""
    check_inputs(node, get_op(node.op_type, _ML))
    data = tensor_type(node, 0).shape
    names = attribute(node, "classlabels_strings")
    count = len(names or attribute(node, "classlabels_ints") or ())
    columns = None
    if count > 1 and (node.op_type == "LinearClassifier" or attribute(node, "prob_a")):
        columns = count
    elif count > 1 and sum(attribute(node, "vectors_per_class") or ()):
        columns = max(count * (count - 1) // 2, 2)
    rows = as_dimension(None)
    if data.rank.is_static:
        rows = data[0] if len(data) > 1 else as_dimension(1)
    labels = TensorType(string if names else i64, PartialShape([rows]))
    return labels, TensorType(f32, PartialShape([rows, columns]))


@infers("OneHotEncoder", domain=_ML)
def _infer_one_hot_encoder(node: Node) -> Sequence[ValueType]:
    """A new last axis, which ONNX does not infer."""
    check_inputs(node, get_op(node.op_type, _ML))
    data = tensor_type(node, 0).shape
    count = len(attribute(node, "cats_int64s") or attribute(node, "cats_strings") or ())
    if data.rank.is_dynamic:
        return (TensorType(f32, PartialShape.dynamic()),)
    return (TensorType(f32, PartialShape([*data.dims, count])),)


@infers("ArrayFeatureExtractor", domain=_ML)
def _infer_array_feature_extractor(node: Node) -> Sequence[ValueType]:
    """ONNX does not define this for a single row, which stays a row."""
    check_inputs(node, get_op(node.op_type, _ML))
    data, indices = tensor_type(node, 0), tensor_type(node, 1).shape
    if data.shape.rank.is_dynamic or not len(data.shape):
        return (TensorType(data.element_type, PartialShape.dynamic()),)
    count = None
    if indices.rank.is_static:
        lengths = [dim for dim in indices if not dim.is_static or dim.min != 1] or [as_dimension(1)]
        count = lengths[0] if len(lengths) == 1 else None
        if indices.is_static:
            count = as_dimension(indices.size())
    rows = list(data.shape.dims[:-1]) or [as_dimension(1)]
    return (TensorType(data.element_type, PartialShape([*rows, count])),)


@infers("FeatureVectorizer", domain=_ML)
def _infer_feature_vectorizer(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type, _ML))
    dimensions = attribute(node, "inputdimensions")
    rows = {shape[0] for shape in _shapes(node) if shape.rank.is_static and len(shape) == 2}
    width = None if dimensions is None else sum(dimensions)
    return (TensorType(f32, PartialShape([rows.pop() if len(rows) == 1 else None, width])),)


@evaluates("FeatureVectorizer", domain=_ML)
def feature_vectorizer(*values: Array) -> Array:
    """Tensors side by side (ai.onnx.ml FeatureVectorizer-1); one of rank 1 is a row."""
    return np.concatenate([np.atleast_2d(x) for x in values], axis=1).astype(np.float32)


@compiles("DictVectorizer", domain=_ML)
def _compile_dict_vectorizer(node: Node) -> Evaluator:
    """The values of the vocabulary's keys (ai.onnx.ml DictVectorizer-1); "" for a missing string, which has no zero."""
    kind, keys = node.output(0).element_type, DictVectorizerSpec.of(node).keys
    missing = "" if kind == string else 0
    return lambda inputs: (np.array([inputs[0].get(key, missing) for key in keys], kind.numpy),)


def _shapes(node: Node) -> list[PartialShape]:
    return [tensor_type(node, index).shape for index in range(node.num_inputs)]


@evaluates_with_spec("Imputer", domain=_ML)
def imputer(spec: ImputerSpec, x: Array) -> Array:
    """x with other values for the replaced one, which may be NaN (ONNX-ML Imputer-1)."""
    is_integral = x.dtype.kind in "iu"
    replaced: Any = spec.replaced_value_int64 if is_integral else spec.replaced_value_float
    is_missing = np.isnan(x) if replaced != replaced else x == np.asarray(replaced).astype(x.dtype)
    return np.where(is_missing, np.asarray(spec.imputed).astype(x.dtype), x)


@evaluates("Scaler", domain=_ML)
def scaler(x: Array, *, offset: Sequence[float] | None, scale: Sequence[float] | None) -> Array:
    """(x - offset) * scale in f32, one value for all features or one for each (ONNX-ML Scaler-1)."""
    shift = np.asarray(offset or (0.0,), dtype=np.float32)
    factor = np.asarray(scale or (1.0,), dtype=np.float32)
    return (x.astype(np.float32) - shift) * factor


@evaluates("Normalizer", domain=_ML)
def normalizer(x: Array, *, norm: str) -> Array:
    """Each row divided by its maximum, L1 or L2 norm; rows of norm 0 do not change (ONNX-ML Normalizer-1)."""
    rows = x.astype(np.float32)
    if norm == "MAX":
        size = rows.max(axis=-1, keepdims=True)
    elif norm in ("L1", "L2"):
        size = np.linalg.norm(rows, ord=int(norm[1]), axis=-1, keepdims=True)
    else:
        raise ModelError(f"norm {norm!r} must be MAX, L1 or L2")
    result: Array = rows / np.where(size == 0, 1, size)
    return result.astype(np.float32)


@evaluates("LinearRegressor", domain=_ML)
def linear_regressor(
    x: Array, *, coefficients: Sequence[float], intercepts: Sequence[float] | None, targets: int, post_transform: str
) -> Array:
    """x [N, C] times the coefficients [targets, C], plus intercepts (ONNX-ML LinearRegressor-1)."""
    weights = np.asarray(coefficients, dtype=np.float32).reshape(targets, -1)
    scores = np.atleast_2d(x).astype(np.float32) @ weights.T + np.asarray(intercepts or 0.0, dtype=np.float32)
    if post_transform == "NONE":
        return scores
    if post_transform == "LOGISTIC":
        logistic: Array = 0.5 * (1 + np.tanh(0.5 * scores))
        return logistic.astype(np.float32)
    if post_transform not in ("SOFTMAX", "SOFTMAX_ZERO"):
        raise UnsupportedError(f"post_transform {post_transform!r} is not supported; expected one of NONE, LOGISTIC, "
                               "SOFTMAX, SOFTMAX_ZERO")  # fmt: skip
    exponentials: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    if post_transform == "SOFTMAX_ZERO":
        exponentials = np.where(scores == 0, 0, exponentials)
    shares: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares.astype(np.float32)


@compiles("LinearClassifier", "SVMClassifier", "SVMRegressor", domain=_ML)
def _compile_classifier(node: Node) -> Evaluator:
    """`onnx.reference` takes no [C], which is one row, and not no rows, and computes in the type of integers."""
    classify = compile_onnx(node)

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        x = np.atleast_2d(inputs[0])
        x = x.astype(np.float32) if x.dtype.kind in "iu" else x
        return classify([x]) if len(x) else tuple(each[:0] for each in classify([np.zeros((1, x.shape[1]), x.dtype)]))

    return run


@evaluates("CategoryMapper", domain=_ML)
def category_mapper(
    x: Array,
    *,
    cats_int64s: Sequence[int] | None,
    cats_strings: Sequence[str] | None,
    default_int64: int,
    default_string: str,
) -> Array:
    """Strings to the integers of one table, or integers to its strings (ONNX-ML CategoryMapper-1)."""
    if cats_int64s is None or cats_strings is None or len(cats_int64s) != len(cats_strings):
        raise ModelError("cats_int64s and cats_strings are required, with equal lengths")
    if x.dtype == object:
        numbers = dict(zip(cats_strings, cats_int64s, strict=True))
        mapped: list[Any] = [numbers.get(str(item), default_int64) for item in x.reshape(-1)]
        return np.array(mapped, dtype=np.int64).reshape(x.shape)
    names = dict(zip(cats_int64s, cats_strings, strict=True))
    mapped = [names.get(int(item), default_string) for item in x.reshape(-1)]
    return np.array(mapped, dtype=object).reshape(x.shape)


@evaluates_with_spec("OneHotEncoder", domain=_ML)
def one_hot_encoder(spec: OneHotEncoderSpec, x: Array) -> Array:
    """For each element of x, ones and zeros along a new last axis; real numbers are cast to integers first.

    Raises `ModelError` for anything that is not a category, unless `zeros`.
    """
    categories: Sequence[Any] = spec.cats_int64s or spec.cats_strings or ()
    places = {category: place for place, category in enumerate(categories)}
    whole = x if x.dtype == object or x.dtype.kind in "iu" else truncated(x, np.int64)
    found = np.array([places.get(each, -1) for each in whole.reshape(-1).tolist()], np.int64).reshape(x.shape)
    if not spec.zeros and (found < 0).any():
        missing = whole.reshape(-1)[np.flatnonzero(found < 0)[0]]
        known = f"{len(categories)}, {categories[0]!r} to {categories[-1]!r}"
        raise ModelError(f"{missing!s:.80} is not one of the categories ({known}); the attribute zeros allows others")
    return np.asarray(found[..., None] == np.arange(len(categories)), np.float32)


@evaluates("ZipMap", domain=_ML)
def zip_map(
    x: Array, *, classlabels_int64s: Sequence[int] | None, classlabels_strings: Sequence[str] | None
) -> tuple[list[Any]]:
    """For each row a map from class label to score (ONNX-ML ZipMap-1)."""
    labels: Sequence[Any] | None = classlabels_strings or classlabels_int64s
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if labels is None or len(labels) != rows.shape[1]:
        raise ModelError(f"{0 if labels is None else len(labels)} class labels do not fit {rows.shape[1]} scores")
    return ([dict(zip(labels, row.tolist(), strict=True)) for row in rows],)


_CAST_TYPES: Final[dict[str, ElementType]] = {"TO_FLOAT": f32, "TO_INT64": i64}


@evaluates("CastMap", domain=_ML)
def cast_map(x: dict[int, Any], *, cast_to: str, map_form: str, max_map: int) -> Array:
    """A map's values by ascending key, or, in SPARSE form, at the positions given by the keys (ONNX-ML CastMap-1)."""
    if map_form == "SPARSE":
        values: list[Any] = [x.get(key, 0) for key in range(max_map)]
    else:
        values = [x[key] for key in sorted(x)]
    if cast_to == "TO_STRING":
        return np.array([str(value) for value in values], dtype=object).reshape(1, -1)
    if cast_to not in _CAST_TYPES:
        raise ModelError(f"cast_to {cast_to!r} must be TO_FLOAT, TO_STRING or TO_INT64")
    numbers = np.array([float(value) for value in values]).reshape(1, -1)
    return truncated(numbers, np.int64) if cast_to == "TO_INT64" else numbers.astype(_CAST_TYPES[cast_to].numpy)


# -- cost -------------------------------------------------------------------------------------------------


@more_time("LinearClassifier", "LinearRegressor", domain=_ML)
def _time_of_products(node: Node) -> float:
    """The product of rows of features with the coefficients."""
    return float(_rows(node) * attribute_length(node, "coefficients"))


@more_time("SVMClassifier", "SVMRegressor", domain=_ML)
def _time_of_vectors(node: Node) -> float:
    """The kernel of each row and vector, and the votes for pairs of classes."""
    numbers = max(attribute_length(node, "support_vectors"), attribute_length(node, "coefficients"))
    return _rows(node) * (10.0 * numbers + CALL * attribute_length(node, "rho"))


def _rows(node: Node) -> int:
    rows = lengths_of(node.input_value(0))
    return rows[0] if len(rows) > 1 else 1
