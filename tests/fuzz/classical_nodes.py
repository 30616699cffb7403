"""Nodes of `ai.onnx.ml` that ONNX's own suite lacks, with values for their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

_X = np.array([[0.5, -1.0], [2.0, 1.5], [-0.25, 0.0]], np.float32)
_TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.25, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip
_NODES: list[tuple[str, list[Any], int, dict[str, Any]]] = [
    ("TreeEnsembleRegressor", [_X], 1, {
        **_TREE, "n_targets": 1, "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    }),
    ("TreeEnsembleClassifier", [_X], 2, {
        **_TREE, "class_treeids": [0, 0], "class_nodeids": [1, 2], "class_ids": [0, 1], "class_weights": [1.0, 1.0],
        "classlabels_int64s": [3, 4],
    }),
    ("SVMRegressor", [_X], 1, {
        "coefficients": [1.0, -0.5], "kernel_params": [0.5, 0.0, 3.0], "kernel_type": "RBF", "n_supports": 2,
        "rho": [0.25], "support_vectors": [1.0, 2.0, -1.0, 0.5],
    }),
    ("SVMClassifier", [_X], 2, {
        "classlabels_ints": [0, 1], "coefficients": [1.0, -0.5], "kernel_params": [0.5, 0.0, 3.0],
        "kernel_type": "RBF", "rho": [0.25], "support_vectors": [1.0, 2.0, -1.0, 0.5], "vectors_per_class": [1, 1],
    }),
    ("LinearRegressor", [_X], 1, {"coefficients": [1.0, 2.0], "intercepts": [0.5], "targets": 1}),
    ("LinearClassifier", [_X], 2, {
        "coefficients": [1.0, 2.0, -1.0, 0.5], "intercepts": [0.5, 0.0], "classlabels_ints": [0, 1],
    }),
    ("Normalizer", [_X], 1, {"norm": "L2"}),
    ("Scaler", [_X], 1, {"offset": [0.5, 1.0], "scale": [2.0, 0.5]}),
    ("Imputer", [_X], 1, {"imputed_value_floats": [1.0, 2.0], "replaced_value_float": 0.0}),
    ("OneHotEncoder", [np.array([1, 3, 2], np.int64)], 1, {"cats_int64s": [1, 2, 3], "zeros": 1}),
    ("FeatureVectorizer", [_X, _X], 1, {"inputdimensions": [2, 2]}),
    ("ZipMap", [_X], 1, {"classlabels_int64s": [5, 6]}),
    ("CategoryMapper", [np.array([1, 3], np.int64)], 1, {"cats_int64s": [1, 3], "cats_strings": ["a", "b"]}),
    ("Binarizer", [_X], 1, {"threshold": 0.25}),
]  # fmt: skip


def classical_models() -> list[tuple[onnx.ModelProto, list[Any]]]:
    """Valid models of one node with the values of their inputs; the types of outputs are not declared."""
    found = []
    for op_type, given, outputs, attributes in _NODES:
        names = [f"x{index}" for index in range(len(given))]
        results = [f"y{index}" for index in range(outputs)]
        node = helper.make_node(op_type, names, results, domain="ai.onnx.ml", **attributes)
        graph = helper.make_graph(
            [node],
            op_type,
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
                for name, value in zip(names, given, strict=True)
            ],
            [onnx.ValueInfoProto(name=name) for name in results],
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
        found.append((helper.make_model(graph, opset_imports=opsets, ir_version=10), given))
    return found
