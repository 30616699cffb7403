"""Models that are not sound end in one of our errors, with place and cause: never in another, a crash or a hang."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from engine.errors import EngineError, GraphError, ModelError, ModelReadError, TypeInferenceError, UnsupportedError
from engine.ir import PartialShape, TensorType, f32, i64
from engine.onnx import join_model, read_model, split_model
from engine.onnx.wire import encode_length

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape: Sequence[int | str | None] | None = (2, 3), kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (value("x"),),
    outputs: Sequence[onnx.ValueInfoProto] = (value("y", None),),
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def refused(proto: onnx.ModelProto | bytes, error: type[EngineError], *words: str) -> None:
    """Assert that reading fails with `error` in whose message all `words` occur."""
    with pytest.raises(error) as found:
        read_model(proto)
    for word in words:
        assert word in str(found.value)


# -- files ------------------------------------------------------------------------------------------------


def test_paths_that_lead_to_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "loop.onnx").symlink_to("loop.onnx")
    for name, words in {
        "missing.onnx": ["missing.onnx", "No such file"],
        "empty.onnx": ["empty.onnx", "is empty"],
        "pipe.onnx": ["not a regular file"],
        "loop.onnx": ["cannot be opened"],
        ".": ["is a directory"],
        "a\0b": ["cannot be opened"],
        "n" * 5000: ["cannot be opened"],
    }.items():
        with pytest.raises(ModelReadError) as error:
            read_model(tmp_path / name)
        assert all(word in str(error.value) for word in words), str(error.value)
    with pytest.raises(ModelReadError, match="path is empty"):
        read_model("")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "Git LFS pointer"),
        (b"PK\x03\x04\x14\x00\x00\x00", "zip archive"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"\x1c\x00\x00\x00TFL3\x14\x00", "TensorFlow Lite"),
        (b"<!DOCTYPE html><html>", "XML or HTML"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x80\x02}q\x00", "pickle"),
        (b"hello, I am no model at all\n", "not a valid ONNX model"),
        (b"\x00" * 64, "not a valid ONNX model"),
        (b"\x08\x08", "no graph"),
        (bytes(range(256)), "not a valid ONNX model"),
    ],
)
def test_files_of_other_kinds_are_told_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelReadError, match=message) as error:
        read_model(path)
    assert "m.onnx" in str(error.value)


class Broken(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise OSError("disk on fire")


def test_streams_and_objects_that_give_no_bytes() -> None:
    wrong: list[tuple[Any, str]] = [
        (io.StringIO("text"), "open the file in binary mode"),
        (Broken(), "disk on fire"),
        (io.BytesIO(b""), "is empty"),
        (b"", "is empty"),
        (17, "cannot read a model from int"),
        (None, "cannot read a model from NoneType"),
        (memoryview(bytes(64))[::2], "not contiguous"),
        (onnx.GraphProto(), "cannot read a model from GraphProto"),
        (onnx.ModelProto(), "no graph"),
    ]
    for source, message in wrong:
        with pytest.raises(ModelReadError, match=message):
            read_model(source)


# -- bytes ------------------------------------------------------------------------------------------------


def small_model() -> bytes:
    """A little of everything: weights in place and inline, a body, a function, metadata, a sparse tensor."""
    big = numpy_helper.from_array(np.arange(300, dtype=np.float32).reshape(20, 15), "big")
    typed = helper.make_tensor("typed", INT64, [2], [20, -1])
    then = helper.make_graph([node("MatMul", "a big", "t")], "then", [], [value("t", None)])
    other = helper.make_graph([node("Reshape", "b typed", "e")], "else", [], [value("e", None)])
    choose = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other, name="if")
    choose.metadata_props.add(key="affinity", value="CPU")
    twice = helper.make_function("my", "Twice", ["i"], ["o"], [node("Add", "i i", "o")], [helper.make_opsetid("", 17)])
    call = helper.make_node("Twice", ["x"], ["a"], domain="my")
    wide = helper.make_node("Constant", [], ["b"], value=numpy_helper.from_array(np.ones((20, 15), np.float32)))
    graph = helper.make_graph([call, wide, choose], "g", [value("x", ("n", 20)), value("flag", (), TensorProto.BOOL)],
                              [value("y", None)], [big, typed])  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my", 1)],
                              ir_version=8, functions=[twice], producer_name="p")  # fmt: skip
    return bytes(proto.SerializeToString())


SMALL = small_model()


def read_or_refuse(data: bytes) -> str:
    """The message for data that is not a sound model; None for sound ones. Any other error passes through."""
    try:
        read_model(data)
    except (ModelError, UnsupportedError) as e:
        return str(e)
    return ""


def test_the_small_model_is_sound() -> None:
    assert [r.friendly_name for r in read_model(SMALL).results] == ["y"]


def test_every_truncation_is_refused_or_whole() -> None:
    """A cut between two fields at the top may leave a model; a cut within one never does."""
    messages = [read_or_refuse(SMALL[:length]) for length in range(1, len(SMALL))]
    assert sum("truncated" not in message for message in messages) <= 4


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(flips=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_are_read_or_refused(flips: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for position, byte in flips:
        data[position] = byte
    read_or_refuse(bytes(data))


@settings(max_examples=200, deadline=None)
@given(data=st.binary(min_size=1, max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((ModelError, UnsupportedError)):
        read_model(data)


@settings(max_examples=100, deadline=None)
@given(position=st.integers(0, len(SMALL) - 1), junk=st.binary(min_size=1, max_size=20))
def test_inserted_bytes_are_read_or_refused(position: int, junk: bytes) -> None:
    read_or_refuse(SMALL[:position] + junk + SMALL[position:])


@pytest.mark.parametrize("length", [1, 2**31, 2**35, 2**63 - 1, 2**64 - 1])
def test_a_forged_length_allocates_nothing(length: int) -> None:
    for path in ([7], [7, 5], [7, 5, 9], [7, 1, 5, 5], [25, 7]):
        data = b""
        for number in reversed(path[:-1]):
            data = encode_length(number, len(data) + 12) + data
        data += encode_length(path[-1], length)
        refused(b"\x08\x08" + data, ModelReadError)


def test_integers_that_do_not_end() -> None:
    refused(b"\x3a" + b"\xff" * 20, ModelReadError, "more than 64 bits")
    refused(b"\x3a" + b"\xff" * 3, ModelReadError, "truncated")
    refused(b"\xff" * 11, ModelReadError)


@pytest.mark.parametrize("depth", [50, 150, 5_000])
@pytest.mark.parametrize("name", [b"g", b"g" * 2000], ids=["small", "large"])
def test_nesting_is_limited(depth: int, name: bytes) -> None:
    """Graph in attribute in node in graph: far deeper than any stack."""
    graph = encode_length(2, len(name)) + name
    for _ in range(depth):
        attribute = b"\x0a\x01b\xa0\x01\x05" + encode_length(6, len(graph)) + graph
        inner = encode_length(5, len(attribute)) + attribute + b"\x22\x02If"
        graph = encode_length(1, len(inner)) + inner
    refused(b"\x08\x08" + b"\x42\x02\x10\x11" + encode_length(7, len(graph)) + graph, ModelError)


def test_a_type_nested_without_end_is_refused() -> None:
    inner = onnx.TypeProto()
    inner.tensor_type.elem_type = FLOAT
    data = inner.SerializeToString()
    for _ in range(500):
        sequence = encode_length(1, len(data)) + data
        data = encode_length(4, len(sequence)) + sequence
    info = b"\x0a\x01x" + encode_length(2, len(data)) + data
    graph = encode_length(11, len(info)) + info
    refused(b"\x08\x08\x42\x02\x10\x11" + encode_length(7, len(graph)) + graph, ModelReadError)


@pytest.mark.parametrize("where", ["node", "value", "graph", "metadata"])
def test_names_that_are_no_text_are_refused(where: str) -> None:
    proto = model_of([node("Relu", "x", "y", name="AAAA")])
    if where == "value":
        proto.graph.input[0].name = proto.graph.node[0].input[0] = "AAAA"
    proto.graph.name = "BBBB" if where != "graph" else "AAAA"
    proto.metadata_props.add(key="k", value="AAAA" if where == "metadata" else "v")
    if where != "node":
        proto.graph.node[0].name = "relu"
    refused(proto.SerializeToString().replace(b"AAAA", b"A\xff\xfeA"), ModelReadError, "UTF-8")


# -- graphs -----------------------------------------------------------------------------------------------


def test_a_cycle_names_its_nodes() -> None:
    nodes = [node("Add", "x c", "a", name="first"), node("Relu", "a", "b", name="second"),
             node("Neg", "b", "c", name="third"), node("Exp", "a", "y", name="outside")]  # fmt: skip
    refused(model_of(nodes), GraphError, "cycle", "first", "second", "third")
    refused(model_of([node("Add", "x y", "y", name="own")]), GraphError, "cycle", "own")


def test_a_cycle_through_a_body_is_found() -> None:
    then = helper.make_graph([node("Relu", "z", "t")], "then", [], [value("t")])
    other = helper.make_graph([node("Relu", "x", "e")], "else", [], [value("e")])
    choose = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other, name="choose")
    flag = value("c", (), TensorProto.BOOL)
    refused(model_of([choose, node("Neg", "y", "z", name="neg")], [value("x"), flag]), GraphError, "choose", "neg")


def test_a_missing_value_names_node_and_value() -> None:
    refused(model_of([node("MatMul", "x weight", "y", name="mm")]), GraphError, "MatMul `mm`", "`weight`",
            "initializer")  # fmt: skip
    then = helper.make_graph([node("Relu", "lost", "t", name="inner")], "then", [], [value("t")])
    choose = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=then)
    refused(model_of([choose], [value("x"), value("c", (), TensorProto.BOOL)]), GraphError, "`inner`", "`lost`")
    refused(model_of([node("Relu", "x", "z")]), GraphError, "output", "`y`")


def test_a_value_that_is_defined_twice_is_named() -> None:
    weight = numpy_helper.from_array(np.ones(3, np.float32), "w")
    refused(model_of([node("Relu", "x", "y", name="a"), node("Neg", "x", "y", name="b")]), GraphError, "`y`", "`a`",
            "`b`")  # fmt: skip
    refused(model_of([node("Relu", "x", "x", name="a")], outputs=[value("x")]), GraphError, "`x`", "an input")
    refused(model_of([node("Relu", "x", "y")], initializers=[weight, weight]), GraphError, "initializer `w`")
    refused(model_of([node("Relu", "x", "y")], [value("x"), value("x")]), GraphError, "input `x`")


# -- calls ------------------------------------------------------------------------------------------------


BRANCHES = {f"{name}_branch": helper.make_graph([], name, [], []) for name in ("then", "else")}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (node("Relu", "x x", "y", name="r"), "Relu `r` has 2 inputs; expected 1"),
        (helper.make_node("Add", ["x"], ["y"], name="a"), "Add `a` has 1 inputs; expected 2"),
        (helper.make_node("Add", ["x", ""], ["y"], name="a"), "Add `a`: input 1 is omitted, and Add requires it"),
        (node("Relu", "x", "y z", name="r"), "Relu `r` has 2 outputs; expected 1"),
        (helper.make_node("If", ["x"], [], name="i", **BRANCHES), "If `i` has 0 outputs; expected 1 or more"),
        (helper.make_node("If", ["x"], ["y"], name="i", **BRANCHES), "0 inputs and 0 outputs; expected 0 and 1"),
        (node("Relu", "x", "y", name="r", alpha=1.0), "Relu `r` has no attribute `alpha`"),
        (node("Softmax", "x", "y", name="s", axis="last"), "attribute `axis` is STRING; expected INT"),
        (node("Cast", "x", "y", name="c"), "required attribute `to` is missing"),
        (node("Concat", "x x", "y", name="c", axis=2**40), "axis 1099511627776 is out of range"),
        (node("Einsum", "x", "y", name="e", equation="i\x80j->i"), "is not an equation"),
        (node("Constant", "", "y", name="k", value_int=1, value_float=1.0), "has 0 inputs, 1 outputs and 2 values"),
        (node("Constant", "", "y", name="k"), "0 values"),
    ],
)  # fmt: skip
def test_calls_that_no_schema_allows(bad: onnx.NodeProto, message: str) -> None:
    refused(model_of([bad]), ModelError, message)


def test_a_repeated_attribute_is_refused() -> None:
    softmax = node("Softmax", "x", "y", axis=1)
    softmax.attribute.append(helper.make_attribute("axis", 0))
    refused(model_of([softmax]), ModelReadError, "`axis` is given twice")


def test_operators_that_cannot_take_what_they_get() -> None:
    refused(model_of([node("MatMul", "x x", "y", name="mm")]), TypeInferenceError, "mm", "[2,3]")
    strings = value("x", (2, 3), TensorProto.STRING)
    refused(model_of([node("Relu", "x", "y", name="r")], [strings]), TypeInferenceError, "Relu `r`", "string")
    pair = [value("x"), value("i", (2, 3), INT64)]
    refused(model_of([node("Add", "x i", "y", name="a")], pair), TypeInferenceError, "Add `a`", "i64", "Cast")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": [2**40]}, "raw data"),
        ({"dims": [2**62, 2**62, 2**62]}, "raw data"),
        ({"dims": [-1]}, "negative length"),
        ({"dims": [2, 1, -(2**63)]}, "negative length"),
        ({"dims": [1] * 100}, ""),
        ({"data_type": 99}, "element type 99"),
        ({"data_type": 0}, "undefined"),
        ({"data_type": TensorProto.DOUBLE}, "takes"),
        ({"data_type": TensorProto.STRING}, "string"),
    ],
)
@pytest.mark.parametrize("count", [3, 5000])
def test_tensors_of_another_size_than_their_shape(change: dict[str, Any], message: str, count: int) -> None:
    tensor = numpy_helper.from_array(np.zeros(count, np.float32), "w")
    if "dims" in change:
        tensor.ClearField("dims")
        tensor.dims.extend(change["dims"])
    else:
        tensor.data_type = change["data_type"]
    refused(model_of([node("Identity", "w", "y")], initializers=[tensor]), ModelError, "`w`" if message else "")


def test_typed_data_in_the_wrong_field_or_number() -> None:
    for count in (2, 4000):
        tensor = TensorProto(name="w", data_type=FLOAT, dims=[count], int64_data=[1] * count)
        refused(model_of([node("Identity", "w", "y")], initializers=[tensor]), ModelReadError, "`w`")
        tensor = TensorProto(name="w", data_type=INT64, dims=[count + 1], int64_data=[1] * count)
        refused(model_of([node("Identity", "w", "y")], initializers=[tensor]), ModelReadError, "`w`")
    nothing = TensorProto(name="w", data_type=FLOAT, dims=[4])
    refused(model_of([node("Identity", "w", "y")], initializers=[nothing]), ModelReadError, "`w`")


def test_sparse_tensors_that_do_not_fit_or_fit_no_memory() -> None:
    def sparse(dims: list[int], index: int) -> onnx.ModelProto:
        values = numpy_helper.from_array(np.ones(1, np.float32), "w")
        proto = model_of([node("Identity", "w", "y")])
        indices = numpy_helper.from_array(np.array([index], np.int64))
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))
        return proto

    refused(sparse([2, 3], 6), ModelReadError, "`w`", "outside")
    refused(sparse([2**40], 6), ModelReadError, "`w`", "dense")
    refused(sparse([2**62, 2**62], 6), ModelReadError, "`w`")


def test_declared_lengths_that_no_tensor_has() -> None:
    refused(model_of([node("Relu", "x", "y")], [value("x", (2, 2**50))]), ModelReadError, "`x`", "along an axis")
    for length in (-1, -7, -(2**63)):  # as some exporters say that they do not know
        model = read_model(model_of([node("Relu", "x", "y")], [value("x", (2, length))]))
        assert model.result("y").type == TensorType(f32, PartialShape([2, None]))


# -- what made ONNX's own inference hang, crash or allocate ------------------------------------------------


def test_vectors_of_forged_lengths_take_neither_time_nor_memory() -> None:
    huge = value("x", (2**33,))
    body = [node("Mul", "x x", "a"), node("Concat", "a a", "y", axis=0)]
    assert read_model(model_of(body, [huge])).result("y").type == TensorType(f32, PartialShape([2**34]))
    bounds = [numpy_helper.from_array(np.array(v, np.int64), n) for v, n in ((0, "zero"), (2**40, "end"), (1, "one"))]
    spread = [node("Range", "zero end one", "r"), node("Add", "r r", "y")]
    read_model(model_of(spread, outputs=[value("y", None, INT64)], initializers=bounds))
    computed = [node("Shape", "x", "s"), node("Mul", "s end", "n"), node("ConstantOfShape", "n", "c"),
                node("Add", "c c", "y")]  # fmt: skip
    read_model(model_of(computed, [value("x", (7,))], initializers=[bounds[1]]))


@pytest.mark.parametrize("op_type", ["Expand", "Reshape", "ConstantOfShape", "Tile", "Slice"])
@pytest.mark.parametrize("opset", [10, 17])
def test_shapes_with_more_elements_than_axes_can_be(op_type: str, opset: int) -> None:
    shape = value("s", (2**40,), INT64)
    inputs = {"ConstantOfShape": "s", "Slice": "x s s"}.get(op_type, "x s")
    refused(model_of([node(op_type, inputs, "y", name="n")], [value("x"), shape], opset=opset), ModelError, "`n`")


@pytest.mark.parametrize("step", [2**31, 2**62, -(2**63)])
@pytest.mark.parametrize("is_node", [False, True])
def test_steps_of_slices_that_onnx_cuts_to_none_take_neither_time_nor_memory(step: int, is_node: bool) -> None:
    start, end = (0, 2**40) if step > 0 else (-1, -(2**40))
    numbers = {"start": start, "end": end, "axis": 0, "step": step}
    tensors = [numpy_helper.from_array(np.array([v], np.int64), name) for name, v in numbers.items()]
    made = [node("Slice", "s start end axis step", "y")]
    if is_node:
        made.insert(0, helper.make_node("Constant", [], ["step"], value=tensors.pop()))
    body = [node("Shape", "x", "s"), *made]
    model = read_model(model_of(body, outputs=[value("y", None, INT64)], initializers=tensors))
    assert model.result("y").type == TensorType(i64, PartialShape([1]))


def test_values_without_a_type_reach_operators_whose_inference_needs_one() -> None:
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("EyeLike", "", {"k": 0}),
        ("RegexFullMatch", "", {"pattern": "a"}),
        ("LabelEncoder", "ai.onnx.ml", {"keys_int64s": [1], "values_int64s": [2]}),
    ]
    for op_type, domain, attributes in calls:
        custom = helper.make_node("Make", [], ["a"], domain="my")
        reader = helper.make_node(op_type, ["a"], ["y"], domain=domain, **attributes)
        proto = model_of([custom, reader], [], opset=22)
        proto.opset_import.extend([helper.make_opsetid("my", 1), helper.make_opsetid("ai.onnx.ml", 4)])
        proto.graph.output[0].ClearField("type")
        assert read_model(proto).result("y").friendly_name == "y"


# -- skeletons of blobs -----------------------------------------------------------------------------------

SKELETON, SECTIONS = split_model(read_model(SMALL))
DATA = {section.name: bytes(section.data) for section in SECTIONS}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(flips=st.lists(st.tuples(st.integers(0, len(SKELETON) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_forged_skeletons_are_read_or_refused(flips: list[tuple[int, int]]) -> None:
    data = bytearray(SKELETON)
    for position, byte in flips:
        data[position] = byte
    with contextlib.suppress(ModelError):
        join_model(bytes(data), lambda name: DATA.get(name, b""))


def test_truncated_skeletons_are_refused_or_whole() -> None:
    refusals = 0
    for length in range(len(SKELETON)):
        try:
            join_model(SKELETON[:length], DATA.__getitem__)
        except ModelError:
            refusals += 1
    assert refusals >= len(SKELETON) - 8


def test_a_section_of_another_size_is_refused() -> None:
    with pytest.raises(ModelReadError, match=r"takes \d+ bytes, but section `0` has 3"):
        join_model(SKELETON, lambda name: b"abc")
