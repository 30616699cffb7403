"""Lists of tree ensembles that are taken from the file without protobuf are what protobuf would read."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from engine import Core
from engine.errors import EngineError
from engine.ir import Node, Parameter, f32
from engine.ir.long_list import PART, LongList
from engine.onnx import model_to_proto, read_model, skeleton
from engine.onnx.long_lists import long_list
from engine.onnx.weight_spans import data_files, weight_spans
from engine.ops.flat_trees import FlatTrees
from engine.ops.spec import OperatorSpec

Array = NDArray[Any]
_TREES = 400


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all lists long ones."""
    monkeypatch.setattr(skeleton, "LIST_BYTES", 8)


def ensemble(**changed: Any) -> onnx.ModelProto:
    """Trees of three nodes, with ids of one to three bytes."""
    rng, count = np.random.default_rng(0), _TREES
    trees = (np.repeat(np.arange(count), 3) * 700).tolist()
    attributes: dict[str, Any] = {
        "n_targets": 1,
        "nodes_treeids": trees,
        "nodes_nodeids": [0, 1, 2] * count,
        "nodes_featureids": rng.integers(0, 300, 3 * count).tolist(),
        "nodes_values": rng.normal(0, 1, 3 * count).astype(np.float32).tolist(),
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * count,
        "nodes_truenodeids": [1, 0, 0] * count,
        "nodes_falsenodeids": [2, 0, 0] * count,
        "target_treeids": [tree for index, tree in enumerate(trees) if index % 3],
        "target_nodeids": [1, 2] * count,
        "target_ids": [0] * (2 * count),
        "target_weights": rng.normal(0, 1, 2 * count).astype(np.float32).tolist(),
    }
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **(attributes | changed))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 300])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])
    opsets = [helper.make_opsetid("", 16), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8)


def attributes_of(data: bytes) -> dict[str, Any]:
    (node,) = [each for each in read_model(data).ordered_nodes() if each.domain == "ai.onnx.ml"]
    return node.attributes


def serialized(**changed: Any) -> bytes:
    return bytes(ensemble(**changed).SerializeToString())


def test_the_attributes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = serialized(nodes_hitrates=[0.1] * (3 * _TREES), nodes_missing_value_tracks_true=[1, 0, 0] * _TREES)
    expected = attributes_of(data)
    monkeypatch.setattr(skeleton, "LIST_BYTES", 8)
    found = attributes_of(data)
    assert found == expected
    assert {name for name, value in found.items() if type(value) is LongList} == set(expected) - {"n_targets"}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_the_results_are_the_same_also_written_and_exported(device: str) -> None:
    x = np.random.default_rng(1).normal(0, 1, (5, 300)).astype(np.float32)
    core, data = Core(), serialized()
    network = core.compile_model(data, device)
    blob = io.BytesIO()
    network.export_model(blob)
    written = model_to_proto(read_model(data))
    expected = core.compile_model(ensemble(), "TEMPLATE")({"x": x})["y"]
    for each in (network, core.import_model(blob.getvalue(), device), core.compile_model(written, device)):
        np.testing.assert_allclose(each({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("short")
def test_what_is_wrong_with_a_list_is_said_as_always() -> None:
    wrong = [7, 0, 0] * _TREES
    with pytest.raises(EngineError, match=r"nodes_truenodeids is .* ids of nodes of the same tree; node 0 names"):
        read_model(serialized(nodes_truenodeids=wrong))
    with pytest.raises(EngineError, match="leads back to itself"):
        read_model(serialized(nodes_truenodeids=[0, 0, 0] * _TREES))


def attribute(value: Any) -> bytes:
    return bytes(helper.make_attribute("list", value).SerializeToString())


@pytest.mark.parametrize(
    "value",
    [
        [1, 2, 3],
        [0, 127, 128, 16384, 1 << 40, (1 << 62) + 5],
        [0.5, -0.0, 3.0e38, float("inf")],
        ["LEAF", "", "a" * 127],
    ],
    ids=["small", "integers", "floats", "texts"],
)
def test_lists_in_the_usual_form(value: list[Any]) -> None:
    data = attribute(value)
    found = long_list(data, 0, len(data))
    assert found is not None
    assert list(found[2]) == ([float(np.float32(each)) for each in value] if isinstance(value[0], float) else value)


@pytest.mark.parametrize(
    "data",
    [
        attribute([1, -1]),
        attribute(["JUMP", "LEAF"]),
        attribute(["a" * 128]),
        attribute([1, 2, 3])[:-1],
        attribute([1, 2, 3]) + attribute([4]),
        attribute([1.0, 2.0])[:-3] + b"\x3d\x00\x00" + b"\xa0\x01\x06",
        attribute([1, 2])[:-3] + b"\x40\xff" + b"\xa0\x01\x07",
        b"\x0a\x01n\x42\x08\x01\x02\x03\x04\x05\x06\x07\x08\xa0\x01\x07",
        b"\xa0\x01\x07\x0a\x01n\x40\x01\x40\x02\x40\x03\x40\x04",
    ],
    ids=["negative", "tag", "long text", "cut short", "another field", "cut float", "cut integer", "packed", "order"],
)  # fmt: skip
def test_other_forms_are_left_to_protobuf(data: bytes) -> None:
    assert long_list(data, 0, len(data)) is None


@pytest.mark.usefixtures("short")
def test_other_forms_are_read_all_the_same() -> None:
    proto = ensemble()
    proto.graph.node[0].attribute[1].doc_string = "of trees"
    assert attributes_of(proto.SerializeToString()) == attributes_of(serialized())


@pytest.mark.usefixtures("short")
def test_lists_are_no_weights_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trees.onnx"
    path.write_bytes(serialized())
    assert weight_spans(path) == []
    assert data_files(path) == []


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_nothing_of_the_lists_outlives_the_model(device: str) -> None:
    def alive() -> set[int]:
        gc.collect()
        return {id(each) for each in gc.get_objects() if isinstance(each, (LongList, FlatTrees))}

    data, before = serialized(), alive()
    network = Core().compile_model(data, device)
    assert alive() - before
    del network
    assert alive() <= before


def test_a_long_tuple_of_python_is_one_list_of_all_copies_and_keeps_their_spec() -> None:
    keys = {"keys_floats": tuple(map(float, range(5000))), "values_floats": (0.5,) * 5000}
    node = Node("LabelEncoder", [Parameter(f32, ["n"])], keys, domain="ai.onnx.ml")
    copy = node.clone_with_new_inputs(node.input_values)
    assert all(type(each) is LongList for each in node.attributes.values())
    assert OperatorSpec.of(copy).keys is OperatorSpec.of(node).keys  # type: ignore[attr-defined]
    copy.set_attribute("values_floats", (1.5,) * 5000)
    assert set(OperatorSpec.of(copy).values.tolist()) == {1.5}  # type: ignore[attr-defined]


def test_texts_of_models_and_errors_show_the_beginning_of_a_long_list() -> None:
    model = read_model(serialized())
    assert len(str(model)) < 5000
    assert "nodes_nodeids=[0, 1, 2, 0, 1, 2, 0, 1, ...; 1200 values]" in str(model)
    with pytest.raises(EngineError) as caught:
        read_model(serialized(target_ids=[9] * (2 * _TREES)))
    assert len(str(caught.value)) < 1000


class Recorded:
    """An array that records how many elements each call converts, which holds the interpreter's lock meanwhile."""

    def __init__(self, array: Array) -> None:
        self.array, self.converted = array, list[int]()

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, part: slice) -> Recorded:
        made = Recorded(self.array[part])
        made.converted = self.converted
        return made

    def tolist(self) -> Any:
        self.converted.append(len(self.array))
        return self.array.tolist()


def test_other_threads_run_while_a_long_list_is_read() -> None:
    """A server answers while a tree ensemble of millions of nodes loads: no call converts a whole list."""
    array = Recorded(np.arange(5 * PART + 3, dtype=np.int64))
    found = LongList.of_numbers(array)  # type: ignore[arg-type]
    assert found == tuple(range(5 * PART + 3))
    assert array.converted == [PART] * 5 + [3]
