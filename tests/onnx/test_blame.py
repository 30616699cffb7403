"""An invalid node is refused when it is read, with its name; invalid values, when they are known.

Not later, as a fault of a pass, of a plugin or of a device. `python -m tests.fuzz blame` searches for more.
"""

from __future__ import annotations

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
Source = tuple[int, list[int]] | Array | None
TREE: dict[str, Any] = {
    "nodes_featureids": [0, 1], "nodes_modes": np.array([0, 0], np.uint8), "nodes_splits": np.array([0.5, 1.5]),
    "nodes_truenodeids": [1, 0], "nodes_falsenodeids": [0, 1], "nodes_trueleafs": [0, 1], "nodes_falseleafs": [1, 1],
    "leaf_targetids": [0, 0], "leaf_weights": np.array([1.0, 2.0]), "tree_roots": [0], "n_targets": 1,
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
]  # fmt: skip


def model_of(op_type: str, sources: list[Source], attributes: dict[str, Any], shape: list[int] | None = None) -> bytes:
    """A model of the node `culprit`; the types of its outputs are not declared, or the first one's, as f32."""
    domain, _, op_type = op_type.rpartition(".")
    names = ["" if source is None else f"input_{index}" for index, source in enumerate(sources)]
    values = {
        name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in attributes.items()
    }
    counts = {"TopK": 2, "Adagrad": 2, "Adam": 3, "Momentum": 2}
    outputs = [f"y{index}" for index in range(counts.get(op_type, 1))]
    node = helper.make_node(op_type, names, outputs, name="culprit", domain=domain, **values)
    given, constants = [], []
    for name, source in zip(names, sources, strict=True):
        if isinstance(source, np.ndarray):
            constants.append(numpy_helper.from_array(source, name))
        elif source is not None:
            given.append(helper.make_tensor_value_info(name, *source))
    declared = helper.make_tensor_value_info("y0", F32, shape)
    if shape is None:
        declared.ClearField("type")
    graph = helper.make_graph([node], "blame", given, [declared], constants)
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
    ("op_type", "attributes"), [(f"{ML}.TreeEnsemble", TREE), (f"{ML}.TreeEnsembleRegressor", LABELLED)]
)
def test_the_trees_are_valid_but_for_the_change(op_type: str, attributes: dict[str, Any]) -> None:
    read_model(model_of(op_type, [(F64 if op_type.endswith("ble") else F32, [3, 2])], attributes))


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
    ("Unsqueeze", [DATA, ints(0, 0)], {}),
    ("Reshape", [DATA, ints(4, 2)], {}),
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


# -- what is valid ----------------------------------------------------------------------------------------


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
