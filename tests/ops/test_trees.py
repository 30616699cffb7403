"""Tree ensembles: their evaluation against onnxruntime and ONNX's reference, types, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from engine import ops
from engine.errors import OperatorSpecError, TypeInferenceError
from engine.ir import ElementType, Parameter, PartialShape
from engine.ops.trees import ML, TreeSpec
from tests.random_trees import ANY_MODE, random_ensemble, random_linked, random_rows, random_shared

Array = np.ndarray[Any, np.dtype[Any]]
REGRESSOR, CLASSIFIER, LINKED = "TreeEnsembleRegressor", "TreeEnsembleClassifier", "TreeEnsemble"


def make(op_type: str, x: Array | tuple[int, ...], attributes: dict[str, Any]) -> Any:
    dtype, shape = (x.dtype, x.shape) if isinstance(x, np.ndarray) else (np.dtype(np.float32), x)
    parameter = Parameter(ElementType.from_numpy(dtype), PartialShape(shape), "x")
    outputs = 2 if op_type == CLASSIFIER else 1
    return ops.create(op_type, [parameter], attributes, num_outputs=outputs, domain=ML)


def evaluated(op_type: str, x: Array, attributes: dict[str, Any]) -> tuple[Array, ...]:
    node = make(op_type, x, attributes)
    results = ops.evaluate(node, [x])
    for output, result in zip(node.outputs, results, strict=True):
        assert output.shape.get_shape() == result.shape
        assert result.dtype == (object if output.element_type.name == "string" else output.element_type.numpy)
    return results


def model_of(op_type: str, x: Array, attributes: dict[str, Any]) -> onnx.ModelProto:
    given = {k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
    names = ["label", "scores"] if op_type == CLASSIFIER else ["scores"]
    node = helper.make_node(op_type, ["x"], names, domain=ML, **given)
    score = x.dtype if op_type == LINKED else np.dtype(np.float32)
    is_text = "classlabels_strings" in attributes
    types = {"label": onnx.TensorProto.STRING if is_text else onnx.TensorProto.INT64,
             "scores": helper.np_dtype_to_tensor_dtype(score)}  # fmt: skip
    graph = helper.make_graph(
        [node], "trees",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), list(x.shape))],
        [helper.make_tensor_value_info(name, types[name], None) for name in names],
    )  # fmt: skip
    version = 5 if op_type == LINKED else 3
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def by_onnxruntime(op_type: str, x: Array, attributes: dict[str, Any]) -> list[Array]:
    session = onnxruntime.InferenceSession(
        model_of(op_type, x, attributes).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, {"x": x}))


def tolerance(attributes: dict[str, Any], kind: str) -> float:
    """Sums of weights below 1 in any order, and a softmax of them."""
    return 4 * len(set(attributes[f"{kind}_treeids"])) * float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_regressors(aggregate: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    # In onnxruntime, a NaN is not equal to anything, whatever the node says about missing values.
    modes = [mode for mode in ANY_MODE if mode != "BRANCH_NEQ"]
    for targets, votes in ((1, 1), (3, 1), (3, 2)):
        attributes = random_ensemble(rng, "target", targets=targets, votes=votes, modes=modes)
        attributes["aggregate_function"] = aggregate
        if targets == 1:
            attributes["base_values"] = (0.25,)
        x = random_rows(rng, 40, 6, dtype)
        # onnxruntime has no regressors of integers, which the operator compares as f32.
        wanted = by_onnxruntime(REGRESSOR, x if x.dtype.kind == "f" else x.astype(np.float32), attributes)[0]
        bound = tolerance(attributes, "target")
        np.testing.assert_allclose(evaluated(REGRESSOR, x, attributes)[0], wanted, rtol=0, atol=bound)


def test_thresholds_are_f32_values_for_double_features() -> None:
    stump = {"treeids": (0,) * 3, "nodeids": (0, 1, 2), "featureids": (0,) * 3, "modes": ("BRANCH_LEQ", "LEAF", "LEAF"),
             "truenodeids": (1, 0, 0), "falsenodeids": (2, 0, 0)}  # fmt: skip
    for threshold in (0.1, 1234567936.0, 1e-40):  # of the second, f32 has a shorter decimal
        value = float(np.float32(threshold))
        x = np.array(
            [[np.nextafter(value, -1)], [value], [np.nextafter(value, 2e9)], [float(str(np.float32(threshold)))]]
        )
        attributes: dict[str, Any] = {f"nodes_{name}": values for name, values in stump.items()}
        attributes |= {"nodes_values": (threshold, 0.0, 0.0), "target_treeids": (0, 0), "target_nodeids": (1, 2)}
        attributes |= {"target_ids": (0, 0), "target_weights": (1.0, 2.0), "n_targets": 1}
        scores = evaluated(REGRESSOR, x, attributes)[0]
        np.testing.assert_array_equal(scores, np.where(x <= value, 1, 2))
        np.testing.assert_array_equal(scores, by_onnxruntime(REGRESSOR, x, attributes)[0])


def test_a_missing_value_is_not_unequal_unless_it_tracks_true() -> None:
    rng = np.random.default_rng(4)
    attributes = random_ensemble(rng, "target", modes=["BRANCH_NEQ"], trees=8)
    x = random_rows(rng, 50, 6, np.float32)
    reference = ReferenceEvaluator(model_of(REGRESSOR, x, attributes)).run(None, {"x": x})[0]
    bound = tolerance(attributes, "target")
    np.testing.assert_allclose(evaluated(REGRESSOR, x, attributes)[0], reference, rtol=0, atol=bound)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
def test_classifiers_of_three_classes(transform: str) -> None:
    rng = np.random.default_rng(5)
    # Each leaf votes for all classes: onnxruntime's best class is one with a vote. The quantile needs shares.
    weights = (0.01, 0.1) if transform == "PROBIT" else (-1.0, 1.0)
    attributes = random_ensemble(rng, "class", votes=3, weights=weights)
    attributes |= {"post_transform": transform, "classlabels_int64s": (4, -7, 9)}
    x = random_rows(rng, 60, 6, np.float32)
    labels, scores = by_onnxruntime(CLASSIFIER, x, attributes)
    found = evaluated(CLASSIFIER, x, attributes)
    np.testing.assert_array_equal(found[0], labels)
    # The derivative of the quantile at a share of 0.05 is below 10; onnxruntime has 3.14159 in it.
    bound = 2e-5 if transform == "PROBIT" else tolerance(attributes, "class")
    np.testing.assert_allclose(found[1], scores, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("transform", "weights"),
    [("NONE", (0.0, 0.2)), ("NONE", (-1.0, 1.0)), ("LOGISTIC", (-1.0, 1.0))],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("base", [(), (0.125,)])
def test_classifiers_of_two_classes_with_one_sum(
    transform: str, weights: tuple[float, float], dtype: Any, base: tuple[float, ...]
) -> None:
    rng = np.random.default_rng(6)
    attributes = random_ensemble(rng, "class", targets=1, weights=weights, modes=ANY_MODE[:2])
    attributes |= {"post_transform": transform, "classlabels_strings": ("no", "yes")}
    if base:
        attributes["base_values"] = base
    x = random_rows(rng, 60, 6, dtype)
    labels, scores = by_onnxruntime(CLASSIFIER, x, attributes)
    found = evaluated(CLASSIFIER, x, attributes)
    assert found[0].tolist() == labels.tolist()
    np.testing.assert_allclose(found[1], scores, rtol=0, atol=tolerance(attributes, "class"))


def test_the_sum_of_the_second_class_is_a_share() -> None:
    attributes = random_ensemble(np.random.default_rng(8), "class", targets=1, weights=(0.0, 0.2))
    attributes |= {"classlabels_int64s": (5, 7), "class_ids": (1,) * len(attributes["class_ids"])}
    x = random_rows(np.random.default_rng(9), 60, 6, np.float32)
    labels, scores = by_onnxruntime(CLASSIFIER, x, attributes)
    found = evaluated(CLASSIFIER, x, attributes)
    assert len(set(labels.tolist())) == 2
    np.testing.assert_array_equal(found[0], labels)
    np.testing.assert_allclose(found[1], scores, rtol=0, atol=tolerance(attributes, "class"))


def test_the_greatest_of_two_sums_decides() -> None:
    """onnxruntime takes the second class if its sum is positive, even if the first one's is greater."""
    attributes = random_ensemble(np.random.default_rng(10), "class", targets=2, votes=2, weights=(0.0, 1.0))
    attributes |= {"classlabels_int64s": (0, 1), "base_values": (0.0, 0.25)}
    labels, scores = evaluated(CLASSIFIER, random_rows(np.random.default_rng(11), 60, 6, np.float32), attributes)
    assert set(labels.tolist()) == {0, 1}
    np.testing.assert_array_equal(labels, np.argmax(scores, axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_linked_trees(dtype: Any) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        attributes = random_linked(rng, dtype)
        # See above about NaN; onnxruntime 1.31 does not follow missing values in a set.
        x = np.nan_to_num(random_rows(rng, 50, 6, dtype), nan=0.25)
        wanted = by_onnxruntime(LINKED, x, attributes)[0]
        eps = float(np.finfo(dtype).eps)
        np.testing.assert_allclose(evaluated(LINKED, x, attributes)[0], wanted, rtol=0, atol=20 * eps)


def test_a_tree_of_one_leaf_and_a_missing_member() -> None:
    attributes: dict[str, Any] = {
        "n_targets": 1,
        "tree_roots": (0, 1),
        "nodes_featureids": (0, 0),
        "nodes_splits": np.array([0, 0], np.float32),
        "nodes_modes": np.array([0, 6], np.uint8),
        "membership_values": np.array([1, 0, np.nan], np.float32),
        "nodes_missing_value_tracks_true": (0, 1),
        "nodes_truenodeids": (0, 1),
        "nodes_trueleafs": (1, 1),
        "nodes_falsenodeids": (0, 2),
        "nodes_falseleafs": (1, 1),
        "leaf_targetids": (0, 0, 0),
        "leaf_weights": np.array([100, 10, 1], np.float32),
    }
    x = np.array([[0], [1], [2], [np.nan]], np.float32)
    assert evaluated(LINKED, x, attributes)[0].reshape(-1).tolist() == [110, 110, 101, 110]
    assert evaluated(LINKED, x[0], attributes)[0].tolist() == [[110]]


def walked(attributes: dict[str, Any], x: Array) -> Array:
    """The scores [N, 1] by the text: a NaN goes where its node says, another number by the comparison."""
    names = ("featureids", "modes", "values", "missing_value_tracks_true", "truenodeids", "falsenodeids")
    ids = zip(attributes["nodes_treeids"], attributes["nodes_nodeids"], strict=True)
    nodes = dict(zip(ids, zip(*(attributes[f"nodes_{name}"] for name in names), strict=True), strict=True))
    leaves = zip(attributes["target_treeids"], attributes["target_nodeids"], strict=True)
    weights = dict(zip(leaves, attributes["target_weights"], strict=True))
    compare = {"LEQ": "__le__", "LT": "__lt__", "GTE": "__ge__", "GT": "__gt__", "EQ": "__eq__", "NEQ": "__ne__"}
    scores = np.zeros((len(x), 1))
    for row, data in enumerate(x.astype(float)):
        for tree in dict.fromkeys(attributes["nodes_treeids"]):
            at = 0
            while (node := nodes[tree, at])[1] != "LEAF":
                feature, mode, value, missing, true, false = node
                number = float(data[feature])
                holds = missing if number != number else getattr(number, compare[mode[7:]])(value)
                at = true if holds else false
            scores[row] += weights[tree, at]
    return scores


@pytest.mark.parametrize("modes", [ANY_MODE, ("BRANCH_EQ",), ("BRANCH_NEQ", "BRANCH_LT")])
def test_branches_share_nodes(modes: tuple[str, ...]) -> None:
    rng = np.random.default_rng(11)
    for nodes in (2, 5, 12, 25):
        attributes = random_shared(rng, nodes=nodes, modes=modes)
        values = list(attributes["nodes_values"])
        values[int(rng.integers(len(values)))] = float("nan")  # only != holds
        attributes["nodes_values"] = tuple(values)
        x = random_rows(rng, 30, 4, np.float32)
        np.testing.assert_array_equal(evaluated(REGRESSOR, x, attributes)[0], walked(attributes, x))


def ladder(count: int, mode: str) -> dict[str, Any]:
    """Nodes whose branches both lead on, the true one past a node: paths are as many as Fibonacci's numbers."""
    ids = tuple(range(count))
    return {
        "nodes_treeids": (0,) * count, "nodes_nodeids": ids, "nodes_featureids": tuple(i % 3 for i in ids),
        "nodes_modes": (mode,) * (count - 1) + ("LEAF",), "nodes_values": tuple(float(i % 5) for i in ids),
        "nodes_truenodeids": tuple(min(i + 2, count - 1) for i in ids),
        "nodes_falsenodeids": tuple(min(i + 1, count - 1) for i in ids),
        "target_treeids": (0,), "target_nodeids": (count - 1,), "target_ids": (0,), "target_weights": (3.0,),
        "n_targets": 1,
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_EQ"])
def test_shared_nodes_are_not_repeated(mode: str) -> None:
    x = random_rows(np.random.default_rng(1), 4, 3, np.float32)
    attributes = ladder(2000, mode)
    trees = TreeSpec.of(make(REGRESSOR, x, attributes)).trees
    assert len(trees.kind) <= 2 * 2000 + 2
    np.testing.assert_array_equal(evaluated(REGRESSOR, x, attributes)[0], np.full((4, 1), 3))


def test_categories_are_one_set() -> None:
    """A chain of BRANCH_EQ with one true branch takes no more nodes than BRANCH_MEMBER."""
    count = 50
    attributes = ladder(count + 2, "BRANCH_EQ")
    attributes["nodes_modes"] = ("BRANCH_EQ",) * count + ("LEAF", "BRANCH_LEQ")
    attributes["nodes_truenodeids"] = (count + 1,) * count + (0, count)
    attributes["nodes_falsenodeids"] = (*range(1, count + 1), 0, count)
    attributes |= {"nodes_values": (*map(float, range(count)), 0.0, 0.5), "target_nodeids": (count,)}
    attributes["nodes_featureids"] = (0,) * (count + 2)
    trees = TreeSpec.of(make(REGRESSOR, (1, 1), attributes)).trees
    assert len(trees.kind) == count + 4


def test_linked_trees_share_nodes_and_roots() -> None:
    """x0 in {1, 3}, or x1 > 0.5, leads to node 2; it is a tree of its own, too, and counts twice there."""
    attributes = {
        "n_targets": 1, "tree_roots": (0, 2, 2), "nodes_featureids": (0, 1, 1),
        "nodes_splits": np.array([0, 0.5, 8], np.float32), "nodes_modes": np.array([6, 3, 0], np.uint8),
        "membership_values": np.array([1, 3, np.nan], np.float32),
        "nodes_truenodeids": (2, 2, 0), "nodes_trueleafs": (0, 0, 1),
        "nodes_falsenodeids": (1, 2, 1), "nodes_falseleafs": (0, 1, 1),
        "leaf_targetids": (0, 0, 0), "leaf_weights": np.array([1, 10, 100], np.float32),
    }  # fmt: skip
    x = np.array([[1, 0], [3, 9], [2, 0], [2, 1], [2, 9], [np.nan, 0]], np.float32)
    assert evaluated(LINKED, x, attributes)[0].ravel().tolist() == [3, 30, 102, 3, 30, 102]
    with pytest.raises(OperatorSpecError, match=r"nodes_truenodeids .* node [02] leads back to itself"):
        make(LINKED, x, attributes | {"nodes_trueleafs": (0, 0, 0), "nodes_truenodeids": (2, 2, 0)})


def broken(name: str, change: Any) -> dict[str, Any]:
    attributes = random_ensemble(np.random.default_rng(1), "target")
    values = list(attributes[name])
    change(values)
    return attributes | {name: tuple(values)}


def cycle(values: list[int]) -> None:
    values[1] = 0


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            broken("nodes_truenodeids", lambda v: v.__setitem__(0, 99)),
            "nodes_truenodeids .* node that does not exist",
        ),
        (broken("nodes_truenodeids", cycle), "leads back to itself"),
        (broken("nodes_featureids", lambda v: v.__setitem__(0, -1)), "nodes_featureids .* 0 or more"),
        (broken("nodes_values", lambda v: v.pop()), "nodes_values .* values, one for each"),
        (broken("nodes_modes", lambda v: v.__setitem__(0, "BRANCH")), "nodes_modes .* BRANCH_LEQ"),
        (broken("nodes_nodeids", lambda v: v.__setitem__(1, 0)), "nodes_nodeids .* each id once"),
        (broken("target_ids", lambda v: v.__setitem__(0, 3)), r"target_ids .* 0\.\.2"),
        (broken("target_nodeids", lambda v: v.__setitem__(0, 77)), "has no node 77"),
        (broken("target_weights", lambda v: v.pop()), "target_weights"),
        (random_ensemble(np.random.default_rng(1), "target") | {"base_values": (1.0, 2.0)}, "base_values .* 3 values"),
        (random_ensemble(np.random.default_rng(1), "target") | {"post_transform": "TANH"}, "post_transform"),
    ],
)
def test_what_is_no_tree_is_refused(attributes: dict[str, Any], message: str) -> None:
    if "back" in message:  # whichever node 1 is, its branch back to the root is not read if it is a leaf
        attributes["nodes_modes"] = ("BRANCH_LEQ", "BRANCH_LEQ", *attributes["nodes_modes"][2:])
    with pytest.raises(OperatorSpecError, match=f"{REGRESSOR} .*{message}"):
        make(REGRESSOR, (2, 6), attributes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tree_roots": (99,)}, r"tree_roots .* 0\.\."),
        ({"nodes_modes": np.array([9], np.uint8)}, "nodes_modes"),
        ({"leaf_targetids": ()}, "leaf_targetids"),
        ({"membership_values": np.array([1.0], np.float32)}, "membership_values .* followed by a NaN"),
    ],
)
def test_broken_links_are_refused(change: dict[str, Any], message: str) -> None:
    attributes = random_linked(np.random.default_rng(2), np.float32)
    with pytest.raises(OperatorSpecError, match=f"{LINKED} .*{message}"):
        make(LINKED, (2, 6), attributes | change)


def test_rows_without_the_features_of_the_trees() -> None:
    attributes = random_ensemble(np.random.default_rng(1), "target")
    used = TreeSpec.of(make(REGRESSOR, (2, 6), attributes)).trees.num_features
    with pytest.raises(TypeInferenceError, match=f"rows have {used - 1} features; the trees read {used}"):
        make(REGRESSOR, (2, used - 1), attributes)
    with pytest.raises(TypeInferenceError, match="3 dimensions"):
        make(REGRESSOR, (1, 2, 6), attributes)
    assert str(make(REGRESSOR, (-1, 6), attributes).output(0).type) == "f32[?,3]"
