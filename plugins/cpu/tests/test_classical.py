"""Linear models and features of ai.onnx.ml on the device: right answers, and no part on the reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from engine import Core, ops
from engine.ir import ElementType, Model, Node, Parameter, PartialShape
from engine.onnx import model_to_proto

Array = np.ndarray[Any, np.dtype[Any]]
NATIVE = {"ALLOW_REFERENCE": False}
ML = "ai.onnx.ml"
WIDTH = 5
TYPES = [np.float32, np.float64, np.int32, np.int64]


def model_of(op_type: str, attributes: dict[str, Any], dtype: Any, inputs: int = 1) -> tuple[Model, Node]:
    element = ElementType.from_numpy(np.dtype(dtype))
    parameters = [Parameter(element, PartialShape([-1, WIDTH]), f"x{index}") for index in range(inputs)]
    outputs = 2 if "Classifier" in op_type else 1
    node = ops.create(op_type, parameters, attributes, num_outputs=outputs, domain=ML)
    return Model(node.outputs, parameters, name="classical"), node


def compare(op_type: str, attributes: dict[str, Any], dtype: Any = np.float32, inputs: int = 1) -> None:
    """With the reference evaluation, for rows of unknown number."""
    rng = np.random.default_rng(1)
    model, node = model_of(op_type, attributes, dtype, inputs)
    network = Core().compile_model(model, "CPU", NATIVE)
    for rows in (1, 3, 40, 0):
        xs = [rng.uniform(-3, 3, (rows, WIDTH)).astype(dtype) for _ in range(inputs)]
        found = network({f"x{index}": x for index, x in enumerate(xs)}).values()
        for value, wanted in zip(found, ops.evaluate(node, xs), strict=True):
            assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
            if wanted.dtype.kind == "f":  # sums of 5 products below 10, and functions with slopes below 1
                np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(value, wanted)


def linear(targets: int, /, **given: Any) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {
        "coefficients": tuple(rng.standard_normal(targets * WIDTH).tolist()),
        "intercepts": tuple(rng.standard_normal(targets).tolist()),
    } | given


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressors(dtype: Any, transform: str, targets: int) -> None:
    compare("LinearRegressor", linear(targets, targets=targets, post_transform=transform), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("targets", [1, 3, 20])
def test_linear_classifiers(dtype: Any, transform: str, targets: int) -> None:
    """One row of coefficients: both signs of its product are the scores of two classes."""
    labels = tuple(range(30, 30 - max(targets, 2), -1))
    compare("LinearClassifier", linear(targets, classlabels_ints=labels, post_transform=transform), dtype)


@pytest.mark.filterwarnings("ignore:CPU network")
@pytest.mark.parametrize("op_type", ["LinearClassifier", "SVMClassifier"])
def test_labels_that_are_texts(op_type: str) -> None:
    """The names are looked up outside the plan; everything else is in it."""
    rng = np.random.default_rng(3)
    names = ("red", "", "gr\u00fcn")
    given = linear(3, classlabels_strings=names, post_transform="NONE")
    if op_type == "SVMClassifier":
        given = {"classlabels_strings": names, "kernel_type": "RBF", "kernel_params": (0.1, 0.0, 0.0),
                 "support_vectors": tuple(rng.standard_normal(4 * WIDTH).tolist()), "vectors_per_class": (2, 1, 1),
                 "coefficients": (1.0, -2.0, 0.5, 1.0, -1.0, 1.0, -0.5, 2.0), "rho": (0.1, -0.2, 0.3)}  # fmt: skip
    model, _ = model_of(op_type, given, np.float32)
    session = onnxruntime.InferenceSession(model_to_proto(model).SerializeToString())
    x = rng.standard_normal((20, WIDTH)).astype(np.float32)
    label, scores = Core().compile_model(model, "CPU")({"x0": x}).values()
    expected = session.run(None, {"x0": x})
    assert label.tolist() == expected[0].tolist()
    np.testing.assert_allclose(scores, expected[1], atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizers(dtype: Any, norm: str) -> None:
    compare("Normalizer", {"norm": norm}, dtype)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_rows_of_norm_zero_do_not_change(norm: str) -> None:
    x = np.array([[0, 0, 0, 0, 0], [0, -1, 0, -2, 0], [np.nan, 1, 2, 3, 4]], np.float32)
    model, node = model_of("Normalizer", {"norm": norm}, np.float32)
    (found,) = Core().compile_model(model, "CPU", NATIVE)({"x0": x}).values()
    np.testing.assert_allclose(found, ops.evaluate(node, [x])[0], rtol=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
def test_imputers(dtype: Any) -> None:
    kind, replaced = ("floats", "float") if np.dtype(dtype).kind == "f" else ("int64s", "int64")
    compare("Imputer", {f"imputed_value_{kind}": (7,) * WIDTH, f"replaced_value_{replaced}": 1}, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_imputer_of_missing_values(dtype: Any) -> None:
    x = np.array([[np.nan, 1, 2, np.nan, 0.1], [0, 1, 2, 3, 4]], dtype)
    given = {"imputed_value_floats": (0.1, 2.0, 3.0, 4.0, 5.0), "replaced_value_float": float("nan")}
    model, node = model_of("Imputer", given, dtype)
    (found,) = Core().compile_model(model, "CPU", NATIVE)({"x0": x}).values()
    np.testing.assert_array_equal(found, ops.evaluate(node, [x])[0])


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_one_hot_encoders(dtype: Any) -> None:
    """Real numbers are truncated: -0.5 is category 0."""
    compare("OneHotEncoder", {"cats_int64s": (2, 0, -1)}, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_feature_vectorizers(dtype: Any) -> None:
    compare("FeatureVectorizer", {"inputdimensions": (WIDTH, WIDTH)}, dtype, inputs=2)
