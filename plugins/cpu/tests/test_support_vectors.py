"""Support vector machines of ai.onnx.ml on the device: kernels against onnxruntime, and what it does not run against
the reference evaluation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from engine import Core, ops
from engine.errors import UnsupportedError
from engine.ir import ElementType, Model, Node, Parameter, PartialShape
from engine.onnx import model_to_proto

Array = np.ndarray[Any, np.dtype[Any]]
NATIVE = {"ALLOW_REFERENCE": False}
ML = "ai.onnx.ml"


def machine(rng: np.random.Generator, kernel: str, spans: tuple[int, ...], features: int = 5) -> dict[str, Any]:
    classes, count = len(spans), sum(spans)
    pairs = classes * (classes - 1) // 2
    given: dict[str, Any] = {
        "kernel_type": kernel, "kernel_params": (0.25, 0.5, 3.0), "post_transform": "NONE",
        "support_vectors": tuple(rng.standard_normal(count * features).tolist()),
        "coefficients": tuple(rng.standard_normal(count * max(classes - 1, 1)).tolist()),
        "rho": tuple(rng.standard_normal(max(pairs, 1)).tolist()),
    }  # fmt: skip
    if classes == 1:
        return given | {"n_supports": count}
    return given | {"vectors_per_class": spans, "classlabels_ints": tuple(range(10, 10 + classes))}


def network(op_type: str, attributes: dict[str, Any], dtype: Any = np.float32, features: int = 5) -> tuple[Any, Node]:
    parameter = Parameter(ElementType.from_numpy(np.dtype(dtype)), PartialShape([-1, features]), "x")
    outputs = 1 if op_type == "SVMRegressor" else 2
    node = ops.create(op_type, [parameter], attributes, num_outputs=outputs, domain=ML)
    return Model(node.outputs, [parameter], name="machine"), node


def compare(op_type: str, attributes: dict[str, Any], rows: list[Array], *, reference: bool = False) -> None:
    """For rows of unknown number, by one network."""
    model, node = network(op_type, attributes, rows[0].dtype)
    session = None if reference else onnxruntime.InferenceSession(model_to_proto(model).SerializeToString())
    compiled = Core().compile_model(model, "CPU", NATIVE)
    count = len(attributes["support_vectors"])
    for x in rows:
        wanted = session.run(None, {"x": x}) if session is not None and len(x) else ops.evaluate(node, [x])
        for found, expected in zip(compiled({"x": x}).values(), wanted, strict=True):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            if expected.dtype.kind == "i":
                np.testing.assert_array_equal(found, expected)
            else:  # sums of `count` products of at most 5 each, and of cubes of them
                bound = 64 * count * float(np.finfo(np.float32).eps)
                np.testing.assert_allclose(found, expected, rtol=bound, atol=bound)


def batches(rng: np.random.Generator, dtype: Any = np.float32) -> list[Array]:
    return [rng.uniform(-2, 2, (count, 5)).astype(dtype) for count in (1, 6, 37, 0)]


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_regressors(kernel: str, one_class: int) -> None:
    rng = np.random.default_rng(1)
    compare("SVMRegressor", machine(rng, kernel, (19,)) | {"one_class": one_class}, batches(rng))


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("spans", [(3, 18), (16, 1, 5), (2, 0, 33, 4, 7)], ids=str)
@pytest.mark.parametrize("has_probabilities", [False, True])
def test_classifiers(kernel: str, spans: tuple[int, ...], has_probabilities: bool) -> None:
    rng = np.random.default_rng(2)
    attributes = machine(rng, kernel, spans)
    if has_probabilities:
        pairs = len(attributes["rho"])
        attributes["prob_a"] = tuple((-rng.random(pairs) - 0.5).tolist())
        attributes["prob_b"] = tuple(rng.standard_normal(pairs).tolist())
    compare("SVMClassifier", attributes, batches(rng))


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64])
def test_other_types(dtype: Any) -> None:
    """Rows of f64 are computed in f64, integers in f32."""
    rng = np.random.default_rng(3)
    compare("SVMRegressor", machine(rng, "RBF", (19,)), batches(rng, dtype), reference=True)
    compare("SVMClassifier", machine(rng, "POLY", (9, 19)), batches(rng, dtype), reference=True)


def test_distances_far_from_the_origin_do_not_cancel() -> None:
    """Squared norms of 1e8 and a distance of 1."""
    x = np.full((1, 5), 4000, np.float32)
    given = {"kernel_type": "RBF", "kernel_params": (0.5, 0.0, 0.0), "n_supports": 1, "coefficients": (1.0,),
             "rho": (0.0,), "support_vectors": (4001.0, 4000.0, 4000.0, 4000.0, 4000.0)}  # fmt: skip
    compiled = Core().compile_model(network("SVMRegressor", given)[0], "CPU", NATIVE)
    np.testing.assert_allclose(next(iter(compiled({"x": x}).values())), np.exp(-0.5), rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"post_transform": "LOGISTIC"}, "post_transform is LOGISTIC"),
        ({"kernel_type": "POLY", "kernel_params": (0.5, 0.0, 2.5)}, "the degree is 2.5"),
        ({"coefficients": (1.0,) * 21}, "no coefficient is negative"),
    ],
)
def test_other_forms_have_no_kernel(changed: dict[str, Any], text: str) -> None:
    given = machine(np.random.default_rng(4), "RBF", (3, 18)) | changed
    with pytest.raises(UnsupportedError, match=text):
        Core().compile_model(network("SVMClassifier", given)[0], "CPU", NATIVE)
