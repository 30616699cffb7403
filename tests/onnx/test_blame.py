"""An invalid node is refused when it is read, with its name; invalid values are refused when they are known.

Not later, as a fault of a pass, of a plugin or of a device. `python -m tests.fuzz blame` searches for more.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.errors import DeclarationError, EngineError, InputError, ModelError
from engine.onnx import read_model
from engine.ops.cases.case import Array

F32, F64, U8, I64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.UINT8, TensorProto.INT64
ML, TRAINING, PREVIEW = "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.preview"
MAP, LABELS = (F32, [1, 4, 5, 5]), (I64, [1, 5, 5])
RECURRENT: list[Any] = [(F32, [3, 1, 2]), (F32, [1, 4, 2]), (F32, [1, 4, 1]), (F32, [1, 8])]
Source = tuple[int, list[int]] | Array | None
TREE: dict[str, Any] = {
    "nodes_featureids": [0, 1], "nodes_modes": np.array([0, 0], np.uint8), "nodes_splits": np.array([0.5, 1.5]),
    "nodes_truenodeids": [1, 0], "nodes_falsenodeids": [0, 1], "nodes_trueleafs": [0, 1], "nodes_falseleafs": [1, 1],
    "leaf_targetids": [0, 0], "leaf_weights": np.array([1.0, 2.0]), "tree_roots": [0], "n_targets": 1,
}  # fmt: skip
COUNTED: dict[str, Any] = {
    "mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "ngram_counts": [0],
    "ngram_indexes": [0, 1], "pool_int64s": [2, 3],
}  # fmt: skip
SUPPORT: dict[str, Any] = {
    "coefficients": [1.0, -0.5], "kernel_params": [0.5, 0.0, 3.0], "kernel_type": "RBF", "n_supports": 2, "rho": [0.25],
    "support_vectors": [1.0, 2.0, -1.0, 0.5],
}  # fmt: skip
VOTES: dict[str, Any] = {
    **{name: value for name, value in SUPPORT.items() if name != "n_supports"}, "classlabels_ints": [0, 1],
    "vectors_per_class": [1, 1],
}  # fmt: skip
LABELLED: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.25, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "n_targets": 1, "target_treeids": [0, 0],
    "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
}  # fmt: skip


def ints(*values: ArrayLike) -> Array:
    return np.array(values, np.int64)


INVALID: list[tuple[str, list[Source], dict[str, Any]]] = [
    ("Conv", [MAP, (F32, [4, 4, 3, 3])], {"group": 0}),
    ("Conv", [MAP, (F32, [4, 4, 3, 3])], {"strides": [0, 1]}),
    ("Transpose", [MAP], {"perm": [0, 1, 2, 4]}),
    ("LpNormalization", [(F32, [])], {}),
    ("ArgMax", [MAP], {"keepdims": 7}),
    ("ArgMax", [(F32, [2, 0])], {"axis": 1}),
    ("ReduceSum", [MAP], {"keepdims": -1}),
    ("ReduceSum", [MAP, ints(1, -3)], {}),
    ("TopK", [MAP, (I64, [1])], {"largest": 2}),
    ("MaxPool", [MAP], {"kernel_shape": [2, 2], "ceil_mode": 3}),
    ("GlobalMaxPool", [(F32, [1, 2, 0])], {}),
    ("GlobalAveragePool", [(F32, [1, 2, 0, 3])], {}),
    ("NegativeLogLikelihoodLoss", [MAP, LABELS], {"reduction": "average"}),
    ("NegativeLogLikelihoodLoss", [(F32, [2, 3]), ints(1, 3)], {}),
    ("SoftmaxCrossEntropyLoss", [MAP, LABELS], {"reduction": ""}),
    ("SoftmaxCrossEntropyLoss", [(F32, [2, 3]), ints(1, 3)], {}),
    ("StringNormalizer", [(TensorProto.STRING, [3])], {"case_change_action": "TITLE"}),
    ("Bernoulli", [MAP], {"seed": float("inf")}),
    ("DeformConv", [MAP, (F32, [4, 4, 2, 2]), (F32, [])], {}),
    ("DeformConv", [MAP, (F32, [4, 4, 2, 2]), (F32, [1, 8, 3, 3])], {}),
    ("DeformConv", [MAP, (F32, [4, 4, 2, 2]), (F32, [1, 24, 4, 4])], {"offset_group": 3}),
    ("DeformConv", [MAP, (F32, [3, 2, 2, 2]), (F32, [1, 8, 4, 4])], {"group": 2}),
    ("DeformConv", [MAP, (F32, [4, 4, 2, 2]), (F32, [1, 8, 4, 4]), (F32, [3])], {}),
    ("DeformConv", [MAP, (F32, [4, 4, 2, 2]), (F32, [1, 8, 4, 4]), (F32, [4]), (F32, [1, 2, 4, 4])], {}),
    ("Squeeze", [(F32, [1, 3]), ints(2)], {}),
    ("Squeeze", [(F32, [1, 3]), (I64, [])], {}),
    ("Unsqueeze", [(F32, [3]), ints(0, 0)], {}),
    ("Unsqueeze", [(F32, [3]), (I64, [1, 1])], {}),
    ("Reshape", [(F32, [3]), (I64, [])], {}),
    ("Pad", [MAP, (I64, [])], {}),
    ("CenterCropPad", [(F32, [5, 5]), (I64, [2])], {"axes": [1]}),
    ("CenterCropPad", [(F32, [5, 5]), ints(2, -1)], {}),
    ("Trilu", [(I64, [3, 3]), (I64, [3, 3])], {}),
    ("Einsum", [(F32, [3, 4])], {"equation": ""}),
    ("ImageDecoder", [(U8, [9])], {"pixel_format": "CMYK"}),
    ("Range", [(F32, [])] * 3, {"stash_type": 7}),
    ("RoiAlign", [MAP, (F32, [1, 4]), (I64, [1])], {"spatial_scale": float("inf")}),
    ("RoiAlign", [MAP, (F32, [1, 4]), (I64, [1])], {"sampling_ratio": -1}),
    ("RoiAlign", [MAP, (F32, [1, 4]), ints(1)], {}),
    ("RoiAlign", [(F32, [1, 1, 0, 5]), (F32, [1, 4]), (I64, [1])], {}),
    ("MaxUnpool", [(F32, [1, 1, 2, 2]), ints([[[0, 1], [2, 4]]])], {"kernel_shape": [1, 1]}),
    ("MaxUnpool", [(F32, [1, 1, 2, 2]), (I64, [1, 1, 2, 2]), ints(1, 1, 5, -2)], {"kernel_shape": [1, 1]}),
    ("Gather", [(F32, [3, 4]), ints(3)], {}),
    ("GatherElements", [(F32, [3, 3]), ints([0, 1, 3])], {"axis": 1}),
    ("GatherND", [(F32, [2, 2]), ints([0, 1], [1, -3])], {}),
    ("GatherND", [(F32, [2, 2]), (I64, [2, 0])], {}),
    ("ScatterElements", [(F32, [3, 3]), ints([0, 1, 3]), (F32, [1, 3])], {"axis": 1}),
    ("ScatterND", [(F32, [3]), ints([3]), (F32, [1])], {}),
    ("TensorScatter", [(F32, [1, 4, 2]), (F32, [1, 2, 2]), ints(3)], {}),
    ("RotaryEmbedding", [(F32, [1, 2, 2, 4]), (F32, [5, 2]), (F32, [5, 2]), ints([0, 5])], {}),
    ("RotaryEmbedding", [(F32, [1, 2, 2, 4]), (F32, [1, 2, 2]), (F32, [1, 2, 2])], {"rotary_embedding_dim": 8}),
    ("Compress", [(F32, [2]), np.array([False, False, True])], {"axis": 0}),
    ("ReverseSequence", [(F32, [3, 1]), ints(4)], {}),
    ("Col2Im", [(F32, [1, 4, 5]), ints(100, 6), ints(2, 2)], {}),
    ("AffineGrid", [(F32, []), (I64, [4])], {}),
    ("DFT", [(F32, [1, 8, 1]), ints(0).reshape(())], {}),
    ("STFT", [(F32, [1, 8, 1]), ints(1).reshape(()), None, ints(-1).reshape(())], {}),
    ("MelWeightMatrix", [ints(0).reshape(()), *[(I64, [])] * 2, *[(F32, [])] * 2], {}),
    (f"{PREVIEW}.FlexAttention", [(F32, [1, 2, 3, 4]), (F32, [1, 2, 5, 4]), (F32, [1, 2, 6, 4])], {}),
    (f"{PREVIEW}.FlexAttention", [(F32, [1, 3, 3, 4]), (F32, [1, 2, 5, 4]), (F32, [1, 2, 5, 4])], {}),
    (f"{PREVIEW}.FlexAttention", [(F32, [1, 2, 3, 4]), (F32, [1, 2, 5, 3]), (F32, [1, 2, 5, 4])], {}),
    (f"{TRAINING}.Adagrad", [(F32, []), (I64, []), (F32, [1]), (F32, [1])], {}),
    (f"{TRAINING}.Adam", [(F32, []), (I64, []), *[(F32, [2])] * 3], {}),
    (f"{TRAINING}.Momentum", [(F32, []), (I64, []), (F32, [2]), (F32, [1]), (F32, [2])],
     {"alpha": 1.0, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0}),
    (f"{ML}.ArrayFeatureExtractor", [(F32, [2, 3]), ints(3)], {}),
    (f"{ML}.TreeEnsemble", [(F64, [3, 2])], {**TREE, "nodes_truenodeids": [2, 0]}),
    (f"{ML}.TreeEnsemble", [(F64, [3, 2])], {**TREE, "nodes_truenodeids": [0, 0]}),
    (f"{ML}.TreeEnsemble", [(F64, [3, 2])], {**TREE, "nodes_falsenodeids": [0]}),
    (f"{ML}.TreeEnsemble", [(F64, [3, 2])], {**TREE, "leaf_targetids": [0, 1]}),
    (f"{ML}.TreeEnsemble", [(F64, [3, 2])], {**TREE, "tree_roots": [-1]}),
    (f"{ML}.TreeEnsembleRegressor", [(F32, [3, 2])], {**LABELLED, "nodes_truenodeids": [3, 0, 0]}),
    (f"{ML}.TreeEnsembleRegressor", [(F32, [3, 2])], {**LABELLED, "nodes_truenodeids": [0, 0, 0]}),
    (f"{ML}.TreeEnsembleRegressor", [(F32, [3, 2])], {**LABELLED, "nodes_values": [0.25]}),
    (f"{ML}.TreeEnsembleRegressor", [(F32, [3, 2])], {**LABELLED, "target_ids": [0, 1]}),
    (f"{ML}.TreeEnsembleRegressor", [(F32, [3, 1])], LABELLED),
    (f"{ML}.TreeEnsemble", [(F64, [3, 2])], {**TREE, "nodes_modes": np.array(0, np.uint8)}),
    ("Resize", [MAP, None, None, (I64, [4])], {"mode": "cubic", "cubic_coeff_a": float("nan")}),
    ("SplitToSequence", [(F32, [5]), ints(2, 2)], {}),
    ("SplitToSequence", [(F32, [5]), ints(6, -1)], {}),
    ("SplitToSequence", [(F32, [5]), ints(0).reshape(())], {}),
    ("TopK", [MAP, ints(-1)], {}),
    ("MaxUnpool", [(F32, [1, 1, 2, 2]), (I64, [1, 1, 2, 2]), ints(1, 2, 3, 3)], {"kernel_shape": [2, 2]}),
    ("LSTM", [*RECURRENT, np.array([4], np.int32)], {"hidden_size": 1}),
    ("LSTM", [*RECURRENT, np.array([-1], np.int32)], {"hidden_size": 1}),
    ("LSTM", [(F32, [1, 3, 2]), *RECURRENT[1:], np.array([4], np.int32)], {"hidden_size": 1, "layout": 1}),
    ("Dropout", [MAP, np.array(1, np.float32), np.array(True)], {}),
    ("AffineGrid", [(F32, [2, 2, 3]), (I64, [5])], {}),
    ("AffineGrid", [(F32, [2, 2, 3]), ints(2, -1, 4, 4)], {}),
    ("AffineGrid", [(F32, [2, 2, 3]), ints(2, 1, 0, 4)], {}),
    ("Squeeze", [(F32, [1, 3]), ints(0, -2)], {}),
    ("Expand", [(F32, [3, 1]), ints(3, -1)], {}),
    ("ScatterND", [MAP, (I64, []), (F32, [])], {}),
    ("AffineGrid", [(F32, [2, 2, 3]), ints(3, 1, 4, 4)], {}),
    ("Attention", [(F32, [1, 2, 3, 4]), (F32, [1, 2, 5, 3]), (F32, [1, 2, 5, 4])], {}),
    ("SoftmaxCrossEntropyLoss", [(F32, []), (I64, [])], {}),
    ("BatchNormalization", [MAP, *[(F32, [4])] * 4], {"epsilon": -1.0}),
    ("InstanceNormalization", [MAP, *[(F32, [4])] * 2], {"epsilon": -1.0}),
    ("LayerNormalization", [MAP, (F32, [5])], {"epsilon": float("nan")}),
    ("RMSNormalization", [MAP, (F32, [5])], {"epsilon": -1.0}),
    ("GroupNormalization", [MAP, *[(F32, [4])] * 2], {"epsilon": -1.0, "num_groups": 2}),
    ("LRN", [MAP], {"size": 3, "alpha": float("inf")}),
    ("LRN", [MAP], {"size": 3, "bias": float("nan")}),
    ("MaxPool", [(F32, [1, 1, 0])], {"kernel_shape": [1]}),
    ("RoiAlign", [MAP, (F32, [1, 4]), (I64, [1])], {"sampling_ratio": 257}),
    ("STFT", [(F32, [1, 8, 1]), ints(2), (F32, [4])], {}),
    ("STFT", [(F32, [8, 1]), (I64, []), (F32, [4])], {}),
    ("STFT", [(F32, [1, 8, 1]), (I64, []), (F32, [])], {}),
    ("Attention", [*[(F32, [1, 2, 3, 4])] * 3, (F32, [])], {}),
    ("Resize", [MAP, None, None, ints(1, 4, 5, -1)], {}),
    ("Resize", [(F32, [1, 1, 4, 0]), None, None, ints(1, 1, 9, 10)], {"mode": "linear"}),
    ("CumSum", [MAP, (I64, [2])], {}),
    ("TopK", [MAP, (I64, [2])], {}),
    ("SplitToSequence", [(F32, [3, 6]), (I64, [1, 2])], {}),
    ("Attention", [(F32, [1, 2, 3, 4])] * 3, {"q_num_heads": 3}),
    ("ConvTranspose", [(F32, [1, 2, 3, 3]), (F32, [2, 1, 3, 3])], {"output_padding": [1, 0], "strides": [1, 2]}),
    ("Resize", [(TensorProto.BOOL, [1, 1, 4, 4]), None, None, (I64, [4])], {"mode": "linear"}),
    ("Resize", [MAP, (F32, [5]), None, (I64, [4])], {"coordinate_transformation_mode": "tf_crop_and_resize"}),
    ("GridSample", [(F32, [1, 1, 3, 0]), (F32, [1, 2, 4, 2])], {}),
    ("MaxUnpool", [(F32, [1, 1, 2, 2]), (I64, [1, 1, 2, 2]), (I64, [3])], {"kernel_shape": [2, 2]}),
    ("ConvTranspose", [(F32, [3, 2, 3, 3]), (F32, [2, 1, 3, 3])], {"group": 7}),
    ("ConvTranspose", [(F32, [3, 4, 3, 3]), (F32, [2, 1, 3, 3])], {}),
    (f"{ML}.Scaler", [(F32, [])], {"offset": [0.5, 1.0], "scale": [1.0]}),
    ("DFT", [(F32, [1, 1, 2])], {"inverse": 1, "onesided": 1}),
    ("TfIdfVectorizer", [(I64, [4])], {**COUNTED, "ngram_counts": [5]}),
    ("TfIdfVectorizer", [(I64, [4])], {**COUNTED, "mode": "IDF", "weights": [1.0]}),
    ("TfIdfVectorizer", [(I64, [4])], {**COUNTED, "mode": "WRONG"}),
    (f"{ML}.Normalizer", [(F32, [3, 2])], {"norm": "L3"}),
    (f"{ML}.Scaler", [(F32, [3, 2])], {"offset": [0.5, 1.0, 2.0], "scale": [1.0]}),
    (f"{ML}.Imputer", [(F32, [3, 2])], {}),
    (f"{ML}.Imputer", [(F32, [3, 2])], {"imputed_value_floats": [1.0, 2.0, 3.0]}),
    (f"{ML}.LinearRegressor", [(F32, [3, 2])], {"coefficients": [1.0, 2.0, 3.0]}),
    (f"{ML}.LinearRegressor", [(F32, [3, 2])], {"coefficients": [1.0, 2.0], "targets": 0}),
    (f"{ML}.LinearRegressor", [(F32, [3, 2])], {"coefficients": [1.0, 2.0], "intercepts": [1.0, 2.0]}),
    (f"{ML}.LinearClassifier", [(F32, [3, 2])], {"coefficients": [1.0, 2.0]}),
    (f"{ML}.LinearClassifier", [(F32, [3, 2])], {"coefficients": [1.0] * 4, "classlabels_ints": [0, 1]}),
    ("QuantizeLinear", [(F32, [3, 4]), (F32, [])], {"block_size": 2}),
    (f"{ML}.LinearClassifier", [(F32, [3, 2])], {"coefficients": [1.0] * 4, "classlabels_ints": [0, 1, 2]}),
    (f"{ML}.SVMRegressor", [(F32, [3, 2])], {**SUPPORT, "n_supports": 3}),
    (f"{ML}.SVMRegressor", [(F32, [3, 2])], {**SUPPORT, "rho": [0.5, 0.5]}),
    (f"{ML}.SVMRegressor", [(F32, [3, 3])], SUPPORT),
    (f"{ML}.SVMClassifier", [(F32, [3, 2])], {**VOTES, "rho": [0.5, 0.5]}),
    (f"{ML}.SVMClassifier", [(F32, [3, 2])], {**VOTES, "vectors_per_class": [1, 2]}),
    (f"{ML}.SVMClassifier", [(F32, [3, 2])], {**VOTES, "kernel_type": "WRONG"}),
    (f"{ML}.ZipMap", [(F32, [3, 2])], {"classlabels_int64s": [1, 2, 3]}),
    (f"{ML}.ZipMap", [(F32, [3, 2])], {}),
    (f"{ML}.OneHotEncoder", [(I64, [3])], {"cats_int64s": [1, 2, 1]}),
    (f"{ML}.OneHotEncoder", [(I64, [3])], {}),
    (f"{ML}.FeatureVectorizer", [(F32, [3, 2])] * 2, {"inputdimensions": [2]}),
    (f"{ML}.FeatureVectorizer", [(F32, [3, 2])] * 2, {"inputdimensions": [2, 3]}),
    (f"{ML}.FeatureVectorizer", [(F32, [3, 2]), (F32, [4, 2])], {"inputdimensions": [2, 2]}),
]  # fmt: skip


def model_of(op_type: str, sources: list[Source], attributes: dict[str, Any], shape: list[int] | None = None) -> bytes:
    """A model of the node `culprit`, whose type of the result is not declared, or is f32 of `shape`."""
    domain, _, op_type = op_type.rpartition(".")
    names = ["" if source is None else f"input_{index}" for index, source in enumerate(sources)]
    values = {
        name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in attributes.items()
    }
    counts = {"TopK": 2, "Adagrad": 2, "Adam": 3, "Momentum": 2, "LinearClassifier": 2, "SVMClassifier": 2}
    count = attributes.get("num_outputs", counts.get(op_type, 1))
    names_of_outputs = [f"y{index}" for index in range(count)]
    node = helper.make_node(op_type, names, names_of_outputs, name="culprit", domain=domain, **values)
    given, constants = [], []
    for name, source in zip(names, sources, strict=True):
        if isinstance(source, np.ndarray):
            constants.append(numpy_helper.from_array(source, name))
        elif source is not None:
            given.append(helper.make_tensor_value_info(name, *source))
    results = [helper.make_tensor_value_info(name, F32, shape) for name in names_of_outputs[:1]]
    for each in results:
        if shape is None:
            each.ClearField("type")
    graph = helper.make_graph([node], "blame", given, results, constants)
    ml = 3 if op_type.startswith("TreeEnsembleR") else 5
    opsets = [("", 28), (ML, ml), (TRAINING, 1), (PREVIEW, 1)]
    written: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*o) for o in opsets]
    ).SerializeToString()
    return written


@pytest.mark.parametrize(("op_type", "sources", "attributes"), INVALID, ids=lambda each: str(each)[:40])
def test_it_is_refused_when_it_is_read(op_type: str, sources: list[Source], attributes: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="culprit"):
        read_model(model_of(op_type, sources, attributes))


@pytest.mark.parametrize(
    ("op_type", "source", "attributes"),
    [
        (f"{ML}.TreeEnsemble", (F64, [3, 2]), TREE), (f"{ML}.TreeEnsembleRegressor", (F32, [3, 2]), LABELLED),
        ("TfIdfVectorizer", (I64, [4]), COUNTED), (f"{ML}.SVMRegressor", (F32, [3, 2]), SUPPORT),
        (f"{ML}.SVMClassifier", (F32, [3, 2]), VOTES),
    ],
)  # fmt: skip
def test_they_are_valid_but_for_the_change(op_type: str, source: Source, attributes: dict[str, Any]) -> None:
    read_model(model_of(op_type, [source], attributes))


def test_the_last_place_of_a_cache_can_be_written() -> None:
    """A token that fills the cache is valid."""
    read_model(model_of("TensorScatter", [(F32, [1, 4, 2]), (F32, [1, 1, 2]), ints(3)], {"axis": 1}))


def test_a_call_is_checked_after_a_valid_one_of_the_same_element_types() -> None:
    """Equal calls are checked once."""
    nodes = [
        helper.make_node("GlobalMaxPool", ["x"], ["y"]),
        helper.make_node("GlobalMaxPool", ["empty"], ["z"], name="culprit"),
    ]
    given = [helper.make_tensor_value_info("x", F32, [1, 2, 3]), helper.make_tensor_value_info("empty", F32, [1, 2, 0])]
    results = [helper.make_tensor_value_info(name, F32, [1, 2, 1]) for name in "yz"]
    graph = helper.make_graph(nodes, "g", given, results)
    with pytest.raises(EngineError, match="culprit"):
        read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]).SerializeToString())


def test_a_wrong_declaration_names_the_node() -> None:
    with pytest.raises(EngineError, match=r"output `y0` is declared as f32.*Relu `culprit` gives f64"):
        read_model(model_of("Relu", [(F64, [2])], {}, [2]))


def test_an_upgrade_names_the_node() -> None:
    node = helper.make_node("Upsample", ["x", "s"], ["y"], name="culprit")
    infos = [helper.make_tensor_value_info("x", F32, [1, 1, 2, 2]), helper.make_tensor_value_info("s", F32, [0])]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", F32, None)])
    with pytest.raises(ModelError, match="culprit"):
        read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)]).SerializeToString())


# -- values that only an inference knows ------------------------------------------------------------------

CORE = Core()
DATA = np.ones((2, 3), np.float32)
UNFIT: list[tuple[str, list[Array], dict[str, Any]]] = [
    ("Gather", [DATA, ints(2)], {}),
    ("GatherElements", [DATA, ints([0, 9, 1])], {}),
    ("GatherND", [DATA, ints([0, 9])], {}),
    ("ScatterElements", [DATA, ints([0, 9, 1]), DATA[:1]], {}),
    ("ScatterND", [DATA, ints([9]), DATA[:1]], {}),
    ("ReduceSum", [DATA, ints(7)], {}),
    ("ReduceLogSum", [DATA, ints(1, -1)], {"keepdims": 0}),
    ("Squeeze", [DATA, ints(1)], {}),
    ("Squeeze", [DATA[:1], ints(0, 0)], {}),
    ("Unsqueeze", [DATA, ints(0, 0)], {}),
    ("Reshape", [DATA, ints(4, 2)], {}),
    ("Reshape", [DATA, ints(-2, 3)], {}),
    ("Expand", [DATA, ints(4, 3)], {}),
    ("Tile", [DATA, ints(-1, 1)], {}),
    ("Pad", [DATA, ints(-9, 0, 0, 0)], {}),
    ("Slice", [DATA, ints(0), ints(2), ints(7)], {}),
    ("CumSum", [DATA, np.array(7)], {}),
    ("ConstantOfShape", [ints(-1, 2)], {}),
    ("Range", [np.array(0), np.array(5), np.array(0)], {}),
    ("AffineGrid", [np.ones((2, 2, 3), np.float32), ints(2, 3, -2, 6)], {}),
    ("CenterCropPad", [DATA, ints(-1, 2)], {}),
    ("NegativeLogLikelihoodLoss", [DATA, ints(1, 9)], {}),
    ("SoftmaxCrossEntropyLoss", [DATA, ints(1, 9)], {}),
    ("MaxUnpool", [np.ones((1, 1, 2, 2), np.float32), ints([[[99, 1], [2, 3]]])], {"kernel_shape": [2, 2]}),
    ("MaxRoiPool", [np.ones((1, 1, 8, 8), np.float32), np.full((1, 5), 7, np.float32)], {"pooled_shape": [2, 2]}),
    ("Compress", [DATA, np.ones(9, np.bool_)], {"axis": 0}),
    ("SplitToSequence", [DATA, np.array(0)], {}),
    ("SplitToSequence", [DATA, np.array(-1)], {}),
    ("Split", [np.ones(5, np.float32)], {"num_outputs": 4}),
    ("Split", [np.ones(2, np.float32)], {"num_outputs": 4}),
    ("SplitToSequence", [DATA, ints(1, 2)], {}),
    ("RoiAlign", [np.ones((2, 1, 8, 8), np.float32), np.ones((2, 4), np.float32), ints(1, -1)], {}),
    ("RoiAlign", [np.ones((2, 1, 8, 8), np.float32), np.ones((1, 4), np.float32), ints(2)], {}),
    ("DFT", [np.ones((1, 8, 1), np.float32), np.array(8), np.array(-9)], {}),
    ("DFT", [np.ones((1, 8, 1), np.float32), np.array(8), np.array(2)], {}),
    ("STFT", [np.ones((1, 8, 1), np.float32), np.array(0), np.ones(4, np.float32)], {}),
    ("MelWeightMatrix", [np.array(0), *map(np.array, (8, 16000)), np.float32([0]).reshape(()),
                         np.float32([8000]).reshape(())], {}),
    ("OneHot", [ints(0, 1), np.array(-3), np.array([0, 1], np.float32)], {}),
    ("TopK", [DATA, ints(-1)], {}),
    ("TopK", [DATA, ints(4)], {}),
    ("TensorScatter", [np.ones((1, 4, 2), np.float32), np.ones((1, 2, 2), np.float32), ints(-1)], {}),
    ("ReverseSequence", [np.ones((4, 2), np.float32), ints(1, 5)], {}),
    ("ReverseSequence", [np.ones((4, 2), np.float32), ints(-1, 1)], {}),
    ("ReverseSequence", [np.ones((4, 2), np.float32), ints(3, 2, 2, 2)], {"time_axis": 1, "batch_axis": 0}),
    ("Dropout", [DATA, np.array(1.5, np.float32), np.array(True)], {}),
    *[(op_type, [np.ones((3, 1, 2), np.float32), np.ones((1, gates, 2), np.float32), np.ones((1, gates, 1), np.float32),
                 np.ones((1, 2 * gates), np.float32), np.array([length], np.int32)], {"hidden_size": 1})
      for op_type, gates, length in (("RNN", 1, 4), ("GRU", 3, -1), ("LSTM", 4, 9))],
    ("DFT", [np.ones((1, 8, 1), np.float32), np.array(-1)], {}),
    ("ImageDecoder", [np.zeros(9, np.uint8)], {}),
    ("RotaryEmbedding", [np.ones((1, 2, 3, 4), np.float32), *[np.ones((5, 2), np.float32)] * 2, ints([0, 1, 99])], {}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*image.*")
@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"])
@pytest.mark.parametrize(("op_type", "values", "attributes"), UNFIT, ids=lambda each: str(each)[:30])
def test_values_are_the_data_s_fault(
    op_type: str, values: list[Array], attributes: dict[str, Any], device: str
) -> None:
    types = [(helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape)) for value in values]
    network = CORE.compile_model(read_model(model_of(op_type, list(types), attributes)), device)
    with pytest.raises(InputError, match="culprit"):
        network(values)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"])
@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
def test_maps_of_nothing_have_neither_mean_nor_maximum(op_type: str, device: str) -> None:
    network = CORE.compile_model(read_model(model_of(op_type, [(F32, [1, 2, None])], {})), device)  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"culprit.*expected maps of 1 element or more"):
        network([np.ones((1, 2, 0), np.float32)])


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"])
@pytest.mark.parametrize("op_type", ["Gather", "ReverseSequence", "TopK", "DFT"])
def test_a_network_from_a_blob_names_the_node(op_type: str, device: str) -> None:
    values, attributes = next((values, attributes) for name, values, attributes in UNFIT if name == op_type)
    types = [(helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape)) for value in values]
    stream = io.BytesIO()
    CORE.compile_model(read_model(model_of(op_type, list(types), attributes)), device).export_model(stream)
    with pytest.raises(InputError, match="culprit"):
        CORE.import_model(stream.getvalue(), device)(values)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"])
def test_a_declared_shape_that_the_values_contradict(device: str) -> None:
    model = read_model(model_of("Reshape", [(F32, [2, 3]), (I64, [2])], {}, [2, 3]))
    network = CORE.compile_model(model, device)
    with pytest.raises(DeclarationError, match=r"Reshape `culprit` gives another shape than the model declares.*`y0`"):
        network([DATA, ints(3, 2)])
    assert network([DATA, ints(2, 3)])["y0"].shape == (2, 3)


def test_an_output_that_is_an_input_has_the_input_s_type() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", F32, [2, 3])],
        [helper.make_tensor_value_info("x", F32, [3, 3]), helper.make_tensor_value_info("y", F32, None)],
    )
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())
    assert [str(result.type) for result in model.results] == ["f32[2,3]"] * 2


@pytest.mark.parametrize("kind", [F32, F64])
def test_rms_normalization_has_the_type_of_its_scale(kind: int) -> None:
    model = read_model(model_of("RMSNormalization", [(F64, [2, 3]), (kind, [3])], {}))
    network = CORE.compile_model(model, "TEMPLATE")
    scale = np.ones(3, helper.tensor_dtype_to_np_dtype(kind))
    assert network([np.ones((2, 3)), scale])["y0"].dtype == scale.dtype == model.results[0].type.element_type.numpy


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_a_window_of_a_negative_size(device: str) -> None:
    network = CORE.compile_model(read_model(model_of("HannWindow", [(I64, [])], {})), device)
    with pytest.raises(InputError, match="size -3 must not be negative"):
        network([np.array(-3)])


# -- what is valid ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_a_diagonal_beyond_the_matrix(device: str) -> None:
    network = CORE.compile_model(read_model(model_of("Trilu", [(I64, [2, 2]), (I64, [])], {})), device)
    assert network([ints([1, 2], [3, 4]), np.array(-(2**63))])["y0"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_integers_to_negative_powers(device: str) -> None:
    network = CORE.compile_model(read_model(model_of("Pow", [(I64, [6])] * 2, {})), device)
    found = network([ints(4, 1, -1, -1, 0, 2), ints(-2, -3, -3, -2, -1, 3)])["y0"]
    assert found.tolist() == [0, 1, -1, 1, 0, 8]


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
@pytest.mark.parametrize(
    ("op_type", "values", "attributes", "shape"),
    [
        ("Col2Im", [np.zeros((0, 4, 10), np.float32), ints(2, 6), ints(1, 2)], {}, (0, 2, 2, 6)),
        ("GridSample", [np.zeros((1, 0, 3, 2), np.float32), np.zeros((1, 2, 4, 2), np.float32)], {}, (1, 0, 2, 4)),
        (f"{ML}.SVMClassifier", [np.zeros((0, 2), np.float32)], VOTES, (0,)),
    ],
)
def test_batches_of_nothing(
    op_type: str, values: list[Array], attributes: dict[str, Any], shape: tuple[int, ...], device: str
) -> None:
    types = [(helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape)) for value in values]
    network = CORE.compile_model(read_model(model_of(op_type, list(types), attributes)), device)
    assert network(values)["y0"].shape == shape


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_softsign_of_a_scalar(device: str) -> None:
    network = CORE.compile_model(read_model(model_of("Softsign", [(F32, [])], {})), device)
    assert network([np.float32(-3)])["y0"].tolist() == -0.75


def test_a_window_over_more_channels_than_there_are() -> None:
    """One pass for each neighbour that exists, however many the attribute names."""
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 4, 2)
    values = [
        CORE.compile_model(read_model(model_of("LRN", [(F32, [1, 4, 2])], {"size": size, "alpha": 1.0 * size})),
                             "TEMPLATE")([x])["y0"]
        for size in (9, 2**62)
    ]  # fmt: skip
    np.testing.assert_allclose(values[0], values[1], rtol=1e-6)
