"""Writing ONNX models: they are valid, others load them, and they read back unchanged."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Core, ops
from engine.errors import InputError, ModelError, ModelWriteError
from engine.ir import (
    Constant,
    Dimension,
    Model,
    Node,
    Parameter,
    PartialShape,
    Result,
    SequenceType,
    TensorType,
    boolean,
    f32,
    f64,
    i4,
    i64,
    string,
)
from engine.onnx import model_to_proto, read_model, write_model

DATA = Path(onnx.backend.test.__file__).parent / "data"
FILES = sorted(path for folder in ("simple", "pytorch-converted", "pytorch-operator") for path in
               (DATA / folder).glob("*/model.onnx"))  # fmt: skip


def load(proto: onnx.ModelProto | bytes) -> onnxruntime.InferenceSession:
    data = proto if isinstance(proto, bytes) else proto.SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def can_load(path: Path) -> bool:
    """Whether onnxruntime takes the file as it is: some need a locale, or operators of training."""
    try:
        load(path.read_bytes())
    except Exception:
        return False
    return True


def checked(model: Model) -> onnx.ModelProto:
    """The export, found valid by ONNX's checker and loaded by onnxruntime."""
    proto = model_to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    load(proto)
    return proto


def chain(*op_types: str) -> Model:
    x = Parameter(f32, [2, 3], "x")
    value: Node = x
    for op_type in op_types:
        value = ops.create(op_type, [value], friendly_name=op_type.lower())
    return Model([Result(value, "y")], [x], name="chain")


# -- real files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_a_file_read_written_and_read_again_is_the_same_model(path: Path) -> None:
    model = read_model(path)
    proto = model_to_proto(model)
    assert read_model(proto).to_text() == model.to_text()
    onnx.checker.check_model(proto, full_check=True)
    if can_load(path):
        load(proto)


@pytest.mark.slow
def test_every_node_case_is_written_as_a_valid_model_that_reads_back() -> None:
    from engine.testing.onnx_suite import CASES

    # Their types become more precise when they are inferred again from what was inferred before.
    vague = ("_expanded", "attention_local_window_default", "spacetodepth_dcr_mode")
    for case in CASES.values():
        if case.kind != "node":
            continue
        assert case.model is not None
        model = read_model(case.model)
        proto = model_to_proto(model)
        again = read_model(proto)
        assert [str(n) for n in again.ordered_nodes()] == [str(n) for n in model.ordered_nodes()], case.name
        if not any(name in case.name for name in vague):
            assert again.to_text() == model.to_text(), case.name


def test_exports_ask_for_no_more_than_their_operators_need() -> None:
    proto = checked(chain("Relu", "Exp"))
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 13)]
    assert proto.ir_version == 7
    newer = checked(chain("Gelu"))
    assert [(entry.domain, entry.version) for entry in newer.opset_import] == [("", 20)]
    assert newer.ir_version == 9


def test_element_types_ask_for_the_ir_version_that_has_them() -> None:
    packed = Constant(np.array([1, -8, 7], ml_dtypes.int4), friendly_name="w")
    assert packed.element_type is i4
    model = Model([Result(ops.create("Cast", [packed], {"to": TensorProto.FLOAT}), "y")])
    proto = checked(model)
    assert proto.ir_version == 10
    assert read_model(proto).to_text() == model_to_text_with_names(model)


def model_to_text_with_names(model: Model) -> str:
    """The text of the model once every node is named as it is written."""
    for node in model.ordered_nodes():
        node.friendly_name = node.friendly_name
    return model.to_text()


# -- names and annotations --------------------------------------------------------------------------------


def test_names_affinity_and_metadata_are_written() -> None:
    model = chain("Relu", "Exp")
    relu = model.node("relu")
    relu.rt_info.update(affinity="CPU", metadata={"layer": "1"}, doc_string="doc", private=object())
    model.metadata["author"] = "me"
    proto = checked(model)
    assert [n.name for n in proto.graph.node] == ["relu", "exp"]
    assert {e.key: e.value for e in proto.graph.node[0].metadata_props} == {"affinity": "CPU", "layer": "1"}
    assert proto.ir_version == 10, "the version that has metadata of nodes"
    again = read_model(proto)
    assert again.node("relu").rt_info == {"affinity": "CPU", "metadata": {"layer": "1"}, "doc_string": "doc"}
    assert again.metadata == {"author": "me"}
    assert again.name == "chain"


def test_what_a_file_said_of_itself_is_written_back() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"], name="r")
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    proto = helper.make_model(helper.make_graph([relu], "g", info[:1], info[1:], doc_string="inner"),
                              producer_name="p", producer_version="1", model_version=4, domain="org",
                              doc_string="d", opset_imports=[helper.make_opsetid("", 17)])  # fmt: skip
    proto.graph.metadata_props.add(key="a", value="b")
    proto.graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(key="S", value="y")
    written = model_to_proto(read_model(proto))
    for field in ("producer_name", "producer_version", "model_version", "domain", "doc_string"):
        assert getattr(written, field) == getattr(proto, field)
    assert written.graph.doc_string == "inner"
    assert written.graph.metadata_props == proto.graph.metadata_props
    assert written.graph.quantization_annotation == proto.graph.quantization_annotation


def test_values_of_one_name_get_numbers() -> None:
    x = Parameter(f32, [2], "x")
    nodes = [ops.create("Relu", [x], friendly_name="same"), ops.create("Exp", [x], friendly_name="same")]
    weight = Constant(np.ones(2, np.float32), friendly_name="same")
    total = ops.create("Sum", [*nodes, weight], friendly_name="same")
    proto = checked(Model([Result(total, "y")], [x]))
    names = [n.output[0] for n in proto.graph.node] + [t.name for t in proto.graph.initializer]
    assert sorted(names) == ["same", "same_1", "same_2", "y"]


def test_outputs_that_onnx_cannot_name_get_an_identity() -> None:
    x = Parameter(f32, [2], "x")
    relu = ops.create("Relu", [x])
    model = Model([Result(relu, "a"), Result(relu, "b"), Result(x, "copy"), Result(x, "x")], [x])
    session = load(checked(model))
    feed = np.array([-1, 1], np.float32)
    a, b, copy, same = session.run(None, {"x": feed})
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(copy, same)


def test_an_input_and_an_output_of_one_name_are_refused() -> None:
    x = Parameter(f32, [2], "x")
    with pytest.raises(ModelWriteError, match="an output `x` has the name of another input or output; rename it"):
        model_to_proto(Model([Result(ops.create("Relu", [x]), "x")], [x]))


def test_an_initializer_that_a_caller_may_override_stays_an_input() -> None:
    weight = numpy_helper.from_array(np.ones(2, np.float32), "w")
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "w", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", info[:2], info[2:], [weight])
    proto = checked(read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)))
    assert [value.name for value in proto.graph.input] == ["x", "w"]


# -- bodies -----------------------------------------------------------------------------------------------


def loop_model() -> Model:
    """y = x + 3 * (w + x), by a loop whose body reads x and w from around it, and holds an If that reads them too."""
    x, w = Parameter(f32, [2], "x"), Constant(np.full(2, 10, np.float32), friendly_name="w")
    captured = [Parameter(f32, [2], name) for name in ("cx", "cw")]
    state, count, go = Parameter(f32, [2], "state"), Parameter(i64, [], "i"), Parameter(boolean, [], "go")
    inner = [Parameter(f32, [2], name) for name in ("icx", "icw")]
    both = Model([Result(ops.create("Add", inner), "sum")], captures=inner)
    none = Parameter(f32, [2], "zero")
    zero = Model([Result(ops.create("Sub", [none, none]), "nothing")], captures=[none])
    attributes = {"then_branch": both, "else_branch": zero}
    choose = ops.create("If", [go, *captured, captured[0]], attributes, num_outputs=1, friendly_name="choose")
    step = ops.create("Add", [state, choose], friendly_name="step")
    body = Model([Result(ops.create("Identity", [go]), "still"), Result(step, "next")], [count, go, state],
                 captures=captured)  # fmt: skip
    times = Constant(np.array(3), friendly_name="times")
    loop = ops.create("Loop", [times, None, x, x, w], {"body": body}, num_outputs=1, friendly_name="loop")
    return Model([Result(loop, "y")], [x])


def test_captures_become_implicit_again() -> None:
    proto = checked(loop_model())
    loop = next(n for n in proto.graph.node if n.op_type == "Loop")
    assert loop.input == ["times", "", "x"]
    body = loop.attribute[0].g
    choose = next(n for n in body.node if n.op_type == "If")
    branches = {a.name: a.g for a in choose.attribute}
    assert branches["then_branch"].node[0].input == ["x", "w"]
    (y,) = load(proto).run(None, {"x": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(y, [34, 38])
    assert read_model(model_to_proto(read_model(proto))).to_text() == read_model(proto).to_text()


def test_bodies_do_not_hide_names_around_them() -> None:
    """ONNX forbids a name in a body that a graph around it has, wherever."""
    flag, x = Parameter(boolean, [], "flag"), Parameter(f32, [2], "x")
    bodies = []
    for factor in (2, 3):
        own = Constant(np.full(2, factor, np.float32), friendly_name="w")
        capture = Parameter(f32, [2], "x")
        bodies.append(Model([Result(ops.create("Mul", [capture, own], friendly_name="y"), "y")], captures=[capture]))
    attributes = dict(zip(("then_branch", "else_branch"), bodies, strict=True))
    choose = ops.create("If", [flag, x, x], attributes, num_outputs=1, friendly_name="if")
    outer = Constant(np.full(2, 100, np.float32), friendly_name="w")
    model = Model([Result(ops.create("Add", [choose, outer]), "y")], [x, flag])
    session = load(checked(model))
    for value, expected in ((True, [102, 104]), (False, [103, 106])):
        (y,) = session.run(None, {"x": np.array([1, 2], np.float32), "flag": np.array(value)})
        np.testing.assert_array_equal(y, expected)


def test_a_small_constant_that_the_importer_copied_into_bodies_is_written_once() -> None:
    small = numpy_helper.from_array(np.array([3], np.float32), "w")
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    branches = {
        key: helper.make_graph([helper.make_node("Mul", ["x", "w"], [key])], key, [],
                               [helper.make_tensor_value_info(key, TensorProto.FLOAT, [2])])
        for key in ("then_branch", "else_branch")
    }  # fmt: skip
    nodes = [helper.make_node("If", ["c"], ["z"], **branches), helper.make_node("Add", ["z", "w"], ["y"])]
    inputs = [info[0], helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, info[1:], [small])
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    proto = checked(model)
    assert [t.name for t in proto.graph.initializer] == ["w"]
    assert not any(len(a.g.initializer) for n in proto.graph.node for a in n.attribute)
    assert read_model(proto).to_text() == model.to_text()


# -- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int4", "uint2", "float4_e2m1fn", "bool_"])
@pytest.mark.parametrize("count", [3, 3000])
def test_constants_of_every_type_come_back(tmp_path: Path, dtype: str, count: int) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or getattr(np, dtype))
    data = (np.arange(count) % 2).astype(np.float32).astype(kind)
    constant = Constant(data, friendly_name="w")
    model = Model([Result(ops.create("Identity", [constant]), "y")])
    for write in (model_to_proto, writing_to(tmp_path / "m.onnx"), writing_to(tmp_path / "e.onnx", external_data=0)):
        found = read_model(write(model)).node("w")
        assert isinstance(found, Constant)
        assert found.data.dtype == kind
        assert found.data.tobytes() == data.tobytes()


def writing_to(path: Path, **options: Any) -> Callable[[Model], Any]:
    def write(model: Model) -> Path:
        write_model(model, path, **options)
        return path

    return write


def test_constants_that_are_not_contiguous_or_empty_or_strings_come_back() -> None:
    arrays: dict[str, Any] = {
        "turned": np.arange(600, dtype=np.float32).reshape(20, 30).T,
        "strided": np.arange(4000, dtype=np.int64)[::2],
        "swapped": np.arange(700, dtype=">f4"),
        "empty": np.zeros((0, 5), np.float32),
        "scalar": np.array(3.5, np.float32),
        "texts": np.array([["a", "é"], ["", "long" * 500]], object),
    }
    results = [Result(ops.create("Identity", [Constant(a, friendly_name=k)]), f"{k}_out") for k, a in arrays.items()]
    stream = io.BytesIO()
    write_model(Model(results), stream)
    model = read_model(stream.getvalue())
    for name, array in arrays.items():
        found = model.node(name)
        assert isinstance(found, Constant)
        np.testing.assert_array_equal(found.data, array)


def test_a_constructed_model_computes_what_its_file_does() -> None:
    x = Parameter(f64, [4], "x")
    model = Model([Result(ops.Elu(ops.LeakyRelu(x, alpha=0.1), alpha=0.3), "y")], [x])
    stream = io.BytesIO()
    write_model(model, stream)
    values = np.array([-1e9, -3.0, -1 / 3, 2.0])
    (made,), (read,) = (ops.evaluate_model(each, [values]) for each in (model, read_model(stream.getvalue())))
    np.testing.assert_array_equal(made, read)


def test_attributes_of_every_kind_come_back() -> None:
    attributes: dict[str, Any] = {
        "i": -3, "f": 0.25, "s": "é", "raw": b"\xff\x00", "t": np.arange(6, dtype=np.int16).reshape(2, 3),
        "ints": (1, 2), "floats": (0.5, 1.5), "strings": ("a", "b"), "tensors": (np.ones(2, np.float32),),
        "type": TensorType(f32, ops.Parameter(f32, [1, "n"]).output(0).shape),
        "types": (SequenceType(TensorType(i64, ops.Parameter(i64, [2]).output(0).shape)),),
    }  # fmt: skip
    x = Parameter(f32, [2], "x")
    node = Node("Any", [x], attributes, domain="my", types=[TensorType(string, x.output(0).shape)], friendly_name="any")
    model = Model([Result(node, "y")], [x])
    model.opset_imports["my"] = 7
    proto = model_to_proto(model)
    onnx.checker.check_model(proto)
    assert ("my", 7) in [(entry.domain, entry.version) for entry in proto.opset_import]
    found = read_model(proto).node("any").attributes
    assert found.keys() == attributes.keys()
    np.testing.assert_array_equal(found.pop("t"), attributes.pop("t"))
    np.testing.assert_array_equal(found.pop("tensors")[0], attributes.pop("tensors")[0])
    assert found == attributes


def test_dimensions_keep_their_symbols_and_bounds() -> None:
    shape: list[Any] = ["n", 4, None, Dimension(1, 8, symbol="m")]
    x = Parameter(f32, shape, "x")
    model = Model([Result(ops.create("Relu", [x]), "y")], [x])
    assert read_model(checked(model)).parameter("x").type == x.type


@pytest.mark.parametrize("name", ["0", "3", "128", "1..2", "..", "3..", "-1", "a b", "n:", "9" * 30, "1..2:0..9"])
def test_the_name_of_a_dimension_is_never_its_length(name: str) -> None:
    """Symbols of a file, whatever they look like: any length fits, but the same in both inputs."""
    info = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [name, 3]) for each in "xzy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "z"], ["y"])], "g", info[:2], info[2:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if name == "1..2:0..9":  # how this symbol is written with its bounds
        assert read_model(proto).parameter("x").type.shape[0] == Dimension(0, 9, "1..2")  # type: ignore[union-attr]
        return
    model = read_model(proto)
    assert model.parameter("x").type == TensorType(f32, PartialShape([Dimension(symbol=name), 3]))
    assert model.result("y").type == model.parameter("x").type
    assert read_model(checked(model)).parameter("x").type == model.parameter("x").type
    network = Core().compile_model(model, "CPU")
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(network([x, x])["y"], 2 * x)
    with pytest.raises(InputError, match="must be the same everywhere"):
        network([x, x[:1]])
    model.reshape({"z": [None, 3]})
    np.testing.assert_array_equal(Core().compile_model(model, "CPU")([x, x[:1]])["y"], 2 * x)


def test_an_attribute_that_onnx_does_not_have_is_refused() -> None:
    x = Parameter(f32, [2], "x")
    node = Node("Any", [x], {"key": {1: 2}}, domain="my", types=[x.type], friendly_name="any")
    with pytest.raises(ModelWriteError, match="Any `any` cannot be written: attribute `key`"):
        model_to_proto(Model([Result(node, "y")], [x]))


# -- files ------------------------------------------------------------------------------------------------


def weighted(size: int = 5000) -> Model:
    x = Parameter(f32, [size], "x")
    weight = Constant(np.arange(size, dtype=np.float32), friendly_name="w")
    return Model([Result(ops.create("Add", [x, weight], friendly_name="add"), "y")], [x], name="weighted")


class Trickle(io.RawIOBase):
    """A stream that takes few bytes at a time."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data[:1000])
        self.data += piece
        return len(piece)


def test_paths_and_streams_get_what_the_proto_is(tmp_path: Path) -> None:
    model = weighted()
    path, stream, trickle = tmp_path / "m.onnx", io.BytesIO(), Trickle()
    for destination in (path, stream, trickle):
        write_model(model, destination)  # type: ignore[arg-type]
    assert stream.getvalue() == path.read_bytes() == bytes(trickle.data)
    onnx.checker.check_model(str(path), full_check=True)
    load(path.read_bytes())
    assert sorted(os.listdir(tmp_path)) == ["m.onnx"]
    proto = onnx.ModelProto.FromString(stream.getvalue())
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[0]), np.arange(5000))
    assert read_model(path).to_text() == read_model(model_to_proto(model)).to_text()


def test_external_data_lies_beside_the_model_aligned(tmp_path: Path) -> None:
    write_model(weighted(), tmp_path / "m.onnx", external_data=1024)
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx").stat().st_size < 1000
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    entries = {e.key: e.value for e in proto.graph.initializer[0].external_data}
    assert entries == {"location": "m.onnx.data", "offset": "0", "length": "20000"}
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.ones(5000, np.float32)})
    np.testing.assert_array_equal(y, np.arange(5000) + 1)
    found = read_model(tmp_path / "m.onnx").node("w")
    assert isinstance(found, Constant)
    np.testing.assert_array_equal(found.data, np.arange(5000))


def test_above_2_gb_weights_go_to_a_file_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("exporter", "writer"):
        monkeypatch.setattr(f"engine.onnx.{module}.MAX_INLINE_BYTES", 10_000)
    model = weighted()
    write_model(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").stat().st_size == 20_000
    with pytest.raises(ModelWriteError, match="write it to a path"):
        model_to_proto(model)
    with pytest.raises(ModelWriteError, match="cannot be written to a stream"):
        write_model(model, io.BytesIO())


def test_a_model_may_replace_the_file_that_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_model(weighted(), path, external_data=0)
    model = read_model(path)
    write_model(model, path, external_data=0)
    write_model(model, path)
    found = read_model(path).node("w")
    assert isinstance(found, Constant)
    np.testing.assert_array_equal(found.data, np.arange(5000))


def failing(model: Model) -> Iterator[Model]:
    """`model` with a constant whose data cannot be read."""

    def load_data() -> Any:
        raise ModelError("the disk is gone")

    value_type = model.parameter("x").type
    assert isinstance(value_type, TensorType)
    broken = Constant.lazy(value_type, load_data, friendly_name="w")
    model.node("add").input(1).replace_source_output(broken)
    yield model


@pytest.mark.parametrize("external_data", [None, 0])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, external_data: int | None) -> None:
    path = tmp_path / "m.onnx"
    write_model(weighted(), path, external_data=external_data)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    for model in failing(weighted()):
        with pytest.raises(ModelError, match="the disk is gone"):
            write_model(model, path, external_data=external_data)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


class Full(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(28, "No space left on device")


def test_destinations_that_take_nothing(tmp_path: Path) -> None:
    model = weighted()
    with pytest.raises(ModelWriteError, match="No space left"):
        write_model(model, Full())  # type: ignore[arg-type]
    with pytest.raises(ModelWriteError, match=r"folder .*no does not exist"):
        write_model(model, tmp_path / "no" / "m.onnx")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelWriteError, match="folder"):
        write_model(model, tmp_path / "folder")
    with pytest.raises(ModelWriteError, match="cannot write a model to int"):
        write_model(model, 3)  # type: ignore[arg-type]
    with pytest.raises(ModelWriteError, match="external_data is -1"):
        write_model(model, tmp_path / "m.onnx", external_data=-1)
    assert sorted(os.listdir(tmp_path)) == ["folder"]
