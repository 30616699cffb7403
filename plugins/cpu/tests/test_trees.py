"""Tree ensembles of ai.onnx.ml on the device against the reference evaluation, which is tested against onnxruntime."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import ElementType, Model, Parameter, PartialShape
from tests.random_trees import ANY_MODE, random_ensemble, random_linked, random_rows, random_shared

Array = np.ndarray[Any, np.dtype[Any]]
NATIVE = {"ALLOW_REFERENCE": False}


def compare(op_type: str, attributes: dict[str, Any], rows: list[Array], outputs: int = 1) -> None:
    """For rows of unknown number, by one network."""
    element = ElementType.from_numpy(rows[0].dtype)
    parameter = Parameter(element, PartialShape([-1, rows[0].shape[1]]), "x")
    node = ops.create(op_type, [parameter], attributes, num_outputs=outputs, domain="ai.onnx.ml")
    network = Core().compile_model(Model(node.outputs, [parameter], name="trees"), "CPU", NATIVE)
    trees = len(set(attributes.get("nodes_treeids", ()))) or len(attributes["tree_roots"])
    for x in rows:
        for found, wanted in zip(network({"x": x}).values(), ops.evaluate(node, [x]), strict=True):
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            if wanted.dtype.kind == "f":  # sums of weights below 1, in another order for few rows
                bound = 4 * trees * float(np.finfo(np.float32).eps)
                np.testing.assert_allclose(found, wanted, rtol=bound, atol=bound)
            else:
                np.testing.assert_array_equal(found, wanted)


def batches(rng: np.random.Generator, dtype: Any = np.float32) -> list[Array]:
    return [random_rows(rng, count, 6, dtype) for count in (1, 7, 9, 130, 0)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regressors(dtype: Any, aggregate: str) -> None:
    rng = np.random.default_rng(1)
    attributes = random_ensemble(rng, "target", votes=2, modes=ANY_MODE)
    attributes |= {"aggregate_function": aggregate, "base_values": (0.5, 0.25, -1.0)}
    compare("TreeEnsembleRegressor", attributes, batches(rng, dtype))


@pytest.mark.parametrize("mode", ANY_MODE)
def test_modes_of_many_trees(mode: str) -> None:
    rng = np.random.default_rng(2)
    attributes = random_ensemble(rng, "target", targets=1, trees=150, depth=3, modes=[mode])
    compare("TreeEnsembleRegressor", attributes, batches(rng))


@pytest.mark.parametrize("modes", [ANY_MODE, ["BRANCH_EQ"], ["BRANCH_LEQ"], ["BRANCH_LT"]])
def test_branches_share_nodes(modes: list[str]) -> None:
    rng = np.random.default_rng(9)
    compare("TreeEnsembleRegressor", random_shared(rng, nodes=20, features=6, modes=modes), batches(rng))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_classifiers(transform: str, classes: int) -> None:
    """One class: the only sum of two labels."""
    rng = np.random.default_rng(3)
    weights = (0.01, 0.15) if transform == "PROBIT" else (-1.0, 1.0)
    attributes = random_ensemble(rng, "class", targets=classes, votes=classes, weights=weights)
    attributes |= {"post_transform": transform, "classlabels_int64s": (30, 10, 20)[: max(classes, 2)]}
    compare("TreeEnsembleClassifier", attributes, batches(rng), outputs=2)


def test_the_share_of_a_class() -> None:
    rng = np.random.default_rng(4)
    attributes = random_ensemble(rng, "class", targets=1, weights=(0.0, 0.2))
    attributes |= {"classlabels_int64s": (5, 7), "class_ids": (1,) * len(attributes["class_ids"])}
    compare("TreeEnsembleClassifier", attributes, batches(rng), outputs=2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_linked_trees(dtype: Any) -> None:
    rng = np.random.default_rng(5)
    compare("TreeEnsemble", random_linked(rng, dtype) | {"post_transform": 2}, batches(rng, dtype))


def test_thresholds_of_more_precision_than_the_rows() -> None:
    rng = np.random.default_rng(6)
    attributes = random_ensemble(rng, "target", targets=1)
    attributes["nodes_values_as_tensor"] = np.array(attributes.pop("nodes_values")) + 1e-12
    compare("TreeEnsembleRegressor", attributes, batches(rng))


def test_an_exported_network() -> None:
    """The trees are attributes, and the blob holds every number of them."""
    rng = np.random.default_rng(7)
    attributes = random_ensemble(rng, "class", targets=3, votes=2) | {"classlabels_int64s": (30, 10, 20)}
    parameter = Parameter(ElementType.from_numpy(np.dtype(np.float32)), PartialShape([-1, 6]), "x")
    node = ops.create("TreeEnsembleClassifier", [parameter], attributes, num_outputs=2, domain="ai.onnx.ml")
    network = Core().compile_model(Model(node.outputs, [parameter], name="trees"), "CPU", NATIVE)
    blob = io.BytesIO()
    network.export_model(blob)
    imported = Core().import_model(io.BytesIO(blob.getvalue()), "CPU")
    for x in batches(rng):
        for found, wanted in zip(imported({"x": x}).values(), network({"x": x}).values(), strict=True):
            np.testing.assert_array_equal(found, wanted)
