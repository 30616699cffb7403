"""Operators as exporters write them that the reference evaluator of ONNX gets wrong or refuses."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from engine import Core


def results(model: object, feed: dict[str, np.ndarray], device: str) -> list[np.ndarray]:
    network = Core().compile_model(model, device)  # type: ignore[arg-type]
    return list(network.create_infer_request().infer(feed).values())


def support_vectors(classes: int) -> bytes:
    rng = np.random.default_rng(0)
    vectors, pairs = 4 * classes, classes * (classes - 1) // 2
    node = helper.make_node(
        "SVMClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", classlabels_ints=list(range(classes)),
        vectors_per_class=[4] * classes, support_vectors=rng.standard_normal(vectors * 3).tolist(),
        coefficients=rng.standard_normal(vectors * (classes - 1)).tolist(), rho=rng.standard_normal(pairs).tolist(),
        prob_a=(-rng.random(pairs) - 1).tolist(), prob_b=rng.standard_normal(pairs).tolist(), kernel_type="RBF",
        kernel_params=[0.5, 0.0, 3.0], post_transform="NONE",
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("label", TensorProto.INT64, None),
         helper.make_tensor_value_info("scores", TensorProto.FLOAT, None)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_probabilities_of_support_vectors_are_those_of_libsvm(classes: int, device: str) -> None:
    model = support_vectors(classes)
    feed = {"x": np.random.default_rng(1).standard_normal((20, 3)).astype(np.float32)}
    expected = onnxruntime.InferenceSession(model).run(None, feed)
    label, scores = results(model, feed, device)
    assert np.array_equal(label, expected[0])
    # The iteration ends at errors of 0.005 / K; both stop after the same step, unless rounding decides otherwise.
    np.testing.assert_allclose(scores, expected[1], atol=1e-5)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_sums_and_votes_of_support_vectors(kernel: str, one_class: int) -> None:
    rng = np.random.default_rng(5)
    common = {
        "support_vectors": rng.standard_normal(21).tolist(), "kernel_type": kernel, "kernel_params": [0.3, 0.2, 3.0],
        "domain": "ai.onnx.ml",
    }  # fmt: skip
    nodes = [
        helper.make_node("SVMRegressor", ["x"], ["y"], n_supports=7, coefficients=rng.standard_normal(7).tolist(),
                         rho=[0.1], one_class=one_class, **common),
        helper.make_node("SVMClassifier", ["x"], ["label", "scores"], classlabels_strings=["a", "b", "c"],
                         vectors_per_class=[3, 2, 2], coefficients=rng.standard_normal(14).tolist(),
                         rho=rng.standard_normal(3).tolist(), **common),
    ]  # fmt: skip
    outputs = {"y": TensorProto.FLOAT, "label": TensorProto.STRING, "scores": TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    feed = {"x": rng.standard_normal((30, 3)).astype(np.float32)}
    y, label, scores = results(model, feed, "TEMPLATE")
    expected = onnxruntime.InferenceSession(model).run(None, feed)
    # Sums of 7 products of numbers of about 10 at most.
    np.testing.assert_allclose(y, expected[0], atol=1e-4)
    np.testing.assert_allclose(scores, expected[2], atol=1e-4)
    assert label.tolist() == expected[1].tolist()


@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vectors_of_integers_are_computed_in_f32(one_class: int) -> None:
    node = helper.make_node(
        "SVMRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_supports=2, kernel_type="LINEAR", rho=[0.6],
        coefficients=[0.5, -0.25], support_vectors=[1.0, 0.3, 0.7, -1.0], one_class=one_class,
    )  # fmt: skip
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.INT64, ["n", 2])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    (y,) = results(model, {"x": np.array([[1, 2], [3, -4], [0, 1]], np.int64)}, "TEMPLATE")
    expected = np.array([[1.725], [-0.025], [1.0]])
    np.testing.assert_allclose(y, np.sign(expected) if one_class else expected, atol=1e-6)


@pytest.mark.parametrize("is_scalar", [True, False], ids=["scalars", "vectors"])
@pytest.mark.parametrize("centered", [0, 1])
@pytest.mark.parametrize("has_threshold", [True, False])
def test_boxes_are_suppressed_as_in_onnxruntime(is_scalar: bool, centered: int, has_threshold: bool) -> None:
    rng = np.random.default_rng(3)
    shape = [] if is_scalar else [1]
    limits = [
        helper.make_tensor("most", TensorProto.INT64, shape, [7]),
        helper.make_tensor("overlap", TensorProto.FLOAT, shape, [0.25]),
        helper.make_tensor("least", TensorProto.FLOAT, shape, [0.3]),
    ]
    names = ["boxes", "scores", "most", "overlap", *(["least"] if has_threshold else [])]
    node = helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=centered)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [2, 30, 4]),
                      helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, 3, 30])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["k", 3])], limits,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    scores = np.round(rng.random((2, 3, 30)), 1).astype(np.float32)  # some are equal
    feed = {"boxes": rng.random((2, 30, 4)).astype(np.float32), "scores": scores}
    (expected,) = onnxruntime.InferenceSession(model).run(None, feed)
    for device in ("CPU", "TEMPLATE"):
        assert np.array_equal(results(model, feed, device)[0], expected), device
