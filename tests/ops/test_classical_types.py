"""Types of classifiers of `ai.onnx.ml`: without them, nothing that reads their scores has a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Parameter, PartialShape, f32


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"classlabels_ints": (3, 5)}, ["i64[?]", "f32[?,2]"]),
        ({"classlabels_strings": ("a", "b", "c")}, ["string[?]", "f32[?,3]"]),
    ],
)
def test_a_linear_classifier_has_a_score_for_each_class(labels: dict[str, Any], expected: list[str]) -> None:
    (classes,) = map(len, labels.values())
    x = Parameter(f32, PartialShape([-1, 4]), "x")
    attributes = {"coefficients": tuple(map(float, range(4 * classes))), "intercepts": (0.0,) * classes} | labels
    node = ops.create("LinearClassifier", [x], attributes, num_outputs=2, domain="ai.onnx.ml")
    assert [str(output.type) for output in node.outputs] == expected
    found = ops.evaluate(node, [np.ones((7, 4), np.float32)])
    assert [value.shape for value in found] == [(7,), (7, classes)]


def test_the_rank_of_the_scores_of_a_support_vector_machine() -> None:
    x = Parameter(f32, PartialShape([5, 4]), "x")
    attributes = {"classlabels_ints": (3, 5), "coefficients": (1.0,) * 8, "rho": (0.0,)}
    node = ops.create("SVMClassifier", [x], attributes, num_outputs=2, domain="ai.onnx.ml")
    assert [str(output.type) for output in node.outputs] == ["i64[5]", "f32[5,?]"]


def test_one_row_of_a_support_vector_machine() -> None:
    """[C] is one row: it has the labels and scores of [1, C]."""
    attributes = {"classlabels_ints": (3, 5), "coefficients": (1.0,) * 4 + (-1.0,) * 4, "rho": (0.0,)}
    row = np.arange(4, dtype=np.float32)
    found = []
    for value in (row, row[None]):
        x = Parameter(f32, PartialShape(value.shape), "x")
        node = ops.create("SVMClassifier", [x], attributes, num_outputs=2, domain="ai.onnx.ml")
        found.append(ops.evaluate(node, [value]))
    assert [np.asarray(value).tolist() for value in found[0]] == [np.asarray(value).tolist() for value in found[1]]


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        ({"classlabels_ints": (3, 5), "vectors_per_class": (1, 2)}, 2),
        ({"classlabels_ints": (3, 5, 7), "vectors_per_class": (1, 1, 1)}, 3),
        ({"classlabels_strings": tuple("abcd"), "vectors_per_class": (1, 1, 0, 1)}, 6),
        ({"classlabels_ints": (3, 5, 7, 9), "vectors_per_class": (1, 1, 0, 1), "prob_a": (-1.0,) * 6}, 4),
    ],
)
def test_scores_of_support_vectors(given: dict[str, Any], columns: int) -> None:
    """A margin for each pair of classes, both signs of the only one, or a probability for each class."""
    classes = len(given["vectors_per_class"])
    pairs = classes * (classes - 1) // 2
    rest = {"coefficients": (1.0, -2.0, 0.5) * (classes - 1), "rho": (0.5,) * pairs, "support_vectors": (1.0,) * 12}
    rest |= {"prob_b": (0.0,) * pairs} if "prob_a" in given else {}
    x = Parameter(f32, PartialShape([-1, 4]), "x")
    node = ops.create("SVMClassifier", [x], given | rest, num_outputs=2, domain="ai.onnx.ml")
    assert str(node.output(1).type) == f"f32[?,{columns}]"
    assert [value.shape for value in ops.evaluate(node, [np.ones((7, 4), np.float32)])] == [(7,), (7, columns)]
