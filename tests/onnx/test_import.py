"""Reading ONNX models: the content of users' files is in the model, at the canonical opset, under its names."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.errors import GraphError, ModelReadError, TypeInferenceError, UnknownOperatorError, UnsupportedError
from engine.ir import UNKNOWN, Constant, Model, Node, PartialShape, SequenceType, TensorType, bf16, f32, i64, string
from engine.onnx import model_to_proto, read_model
from engine.onnx.wire import decode_varints

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: Sequence[int | str | None] | None = (2, 3), kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (value("x"),),
    outputs: Sequence[onnx.ValueInfoProto] = (value("y"),),
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
    **options: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset), *options.pop("imports", ())]
    return helper.make_model(graph, opset_imports=imports, ir_version=options.pop("ir_version", 8), **options)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """`inputs` and `outputs` are names between spaces, `_` one that is omitted."""
    sources, targets = [["" if name == "_" else name for name in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op_type, sources, targets, **attributes)


def operators(model: Model) -> list[Node]:
    return [n for n in model.ordered_nodes() if n.op_type not in ("Parameter", "Constant", "Result")]


def constant(model: Model, name: str) -> Constant:
    found = model.node(name)
    assert isinstance(found, Constant)
    return found


def infer(model: Model, feeds: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    """The results of onnxruntime for the exported model."""
    session = onnxruntime.InferenceSession(
        model_to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


# -- sources ----------------------------------------------------------------------------------------------


def test_every_kind_of_source_gives_the_same_model(tmp_path: Path) -> None:
    proto = model_of([node("Relu", "x", "y", name="relu")])
    data = proto.SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    sources: list[Any] = [str(path), path, data, bytearray(data), memoryview(data), io.BytesIO(data), proto]
    texts = {read_model(source).to_text() for source in sources}
    assert len(texts) == 1
    with path.open("rb") as stream:
        assert read_model(stream).to_text() in texts


def test_weights_of_a_file_are_views_of_it_and_outlive_the_model(tmp_path: Path) -> None:
    weight = np.arange(4096, dtype=np.float32)
    path = tmp_path / "m.onnx"
    onnx.save(model_of([node("Add", "x w", "y")], [value("x", (4096,))], [value("y", (4096,))],
                       [numpy_helper.from_array(weight, "w")]), path)  # fmt: skip
    model = read_model(path)
    data = constant(model, "w").data
    assert not data.flags.owndata
    assert not data.flags.writeable
    del model
    np.testing.assert_array_equal(data, weight)


def test_the_name_is_the_graphs_or_the_files(tmp_path: Path) -> None:
    proto = model_of([node("Relu", "x", "y")])
    assert read_model(proto).name == "g"
    proto.graph.name = ""
    path = tmp_path / "classifier.onnx"
    onnx.save(proto, path)
    assert read_model(path).name == "classifier"


# -- names and metadata -----------------------------------------------------------------------------------


def test_nodes_without_a_name_get_their_outputs_and_equal_names_are_numbered() -> None:
    model = read_model(
        model_of([node("Relu", "x", "a"), node("Neg", "a", "b", name="n"), node("Exp", "b", "y", name="n")])
    )
    assert [n.friendly_name for n in operators(model)] == ["a", "n", "n_1"]
    assert [n.output(0).name for n in operators(model)] == ["a", "b", "y"]


def test_metadata_and_affinity_reach_rt_info() -> None:
    relu = node("Relu", "x", "y", name="relu", doc_string="from line 7")
    relu.metadata_props.add(key="affinity", value="CPU.1")
    relu.metadata_props.add(key="layer", value="encoder")
    proto = model_of([relu], producer_name="exporter", producer_version="2", doc_string="about", model_version=3)
    proto.metadata_props.add(key="author", value="me")
    proto.graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(key="S", value="y")
    model = read_model(proto)
    assert operators(model)[0].rt_info == {
        "affinity": "CPU.1",
        "metadata": {"layer": "encoder"},
        "doc_string": "from line 7",
    }
    assert model.metadata == {"author": "me"}
    about = model.rt_info["onnx"]
    assert (about["producer_name"], about["producer_version"], about["model_version"]) == ("exporter", "2", 3)
    assert (about["doc_string"], about["opsets"], about["ir_version"]) == ("about", {"": 17}, 8)
    assert about["quantization_annotation"] == {"x": {"S": "y"}}


# -- graphs -----------------------------------------------------------------------------------------------


def test_nodes_out_of_order_are_sorted_and_those_in_order_stay() -> None:
    ordered = [node("Relu", "x", "a"), node("Neg", "x", "b"), node("Add", "a b", "y")]
    shuffled = model_of([ordered[2], ordered[0], ordered[1]])
    assert read_model(shuffled).to_text() == read_model(model_of(ordered)).to_text()


def test_an_omitted_input_is_none_and_one_at_the_end_is_no_input() -> None:
    clip = node("Clip", "x _ hi", "a")
    tail = node("Clip", "a lo _", "y")
    bounds = [numpy_helper.from_array(np.array(v, np.float32), name) for v, name in ((0, "lo"), (6, "hi"))]
    first, second = operators(read_model(model_of([clip, tail], initializers=bounds)))
    assert [v and v.name for v in first.input_values] == ["x", None, "hi"]
    assert second.num_inputs == 2


def test_an_omitted_output_keeps_its_place() -> None:
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name)
               for name, shape in (("w", (1, 16, 3)), ("r", (1, 16, 4)))]  # fmt: skip
    lstm = node("LSTM", "x w r", "_ y", hidden_size=4)
    model = read_model(model_of([lstm], [value("x", (5, 2, 3))], [value("y", (1, 2, 4))], weights))
    (found,) = operators(model)
    assert found.num_outputs == 2
    assert model.outputs == [found.output(1)]
    assert model_to_proto(model).graph.node[0].output == ["", "y"]


def test_outputs_may_be_inputs_and_initializers() -> None:
    weight = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    model = read_model(model_of([], [value("x")], [value("x"), value("w")], [weight]))
    assert [r.friendly_name for r in model.results] == ["x", "w"]
    assert model.outputs[0] == model.inputs[0]
    assert isinstance(model.outputs[1].node, Constant)


def test_initializers_that_are_inputs_too_are_constants() -> None:
    weight = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    add = node("Add", "x w", "y")
    for ir_version, overridable in ((3, []), (4, ["w"]), (8, ["w"])):
        model = read_model(model_of([add], [value("x"), value("w")], initializers=[weight], ir_version=ir_version))
        assert [p.friendly_name for p in model.parameters] == ["x"]
        assert model.overridable == overridable
        assert constant(model, "w").rt_info.get("overridable", False) is bool(overridable)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value": numpy_helper.from_array(np.array([[1, 2]], np.int8))}, np.array([[1, 2]], np.int8)),
        ({"value_float": 0.5}, np.array(0.5, np.float32)),
        ({"value_floats": [0.5, 2.0]}, np.array([0.5, 2], np.float32)),
        ({"value_int": 3}, np.array(3, np.int64)),
        ({"value_ints": [3, 4]}, np.array([3, 4], np.int64)),
        ({"value_string": "é"}, np.array("é", object)),
        ({"value_strings": ["a", "b"]}, np.array(["a", "b"], object)),
        (
            {"sparse_value": helper.make_sparse_tensor(numpy_helper.from_array(np.array([7.0], np.float32), "v"),
                                                       numpy_helper.from_array(np.array([2], np.int64)), [2, 2])},
            np.array([[0, 0], [7, 0]], np.float32),
        ),
    ],
)  # fmt: skip
def test_every_form_of_constant_is_a_constant(attributes: dict[str, Any], expected: np.ndarray[Any, Any]) -> None:
    make = helper.make_node("Constant", [], ["c"], name="made", **attributes)
    kind = helper.np_dtype_to_tensor_dtype(expected.dtype) if expected.dtype != object else TensorProto.STRING
    output = value("y", expected.shape, kind)
    model = read_model(model_of([make, node("Identity", "c", "y")], [], [output]))
    found = constant(model, "c")
    np.testing.assert_array_equal(found.data, expected)
    assert found.data.dtype == expected.dtype


def test_sparse_initializers_are_dense_constants() -> None:
    proto = model_of([node("Add", "x w", "y")])
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    places = numpy_helper.from_array(np.array([[0, 1], [1, 2]], np.int64))
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 3]))
    expected = np.zeros((2, 3), np.float32)
    expected[0, 1], expected[1, 2] = 5, 7
    np.testing.assert_array_equal(constant(read_model(proto), "w").data, expected)


def test_large_tensors_in_attributes_are_read_from_their_place() -> None:
    table = np.arange(600, dtype=np.float32).reshape(20, 30)
    make = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(table))
    custom = helper.make_node("Lookup", ["x"], ["t"], domain="my.ops", table=numpy_helper.from_array(table))
    proto = model_of([make, node("Add", "x w", "y"), custom], [value("x", (20, 30))],
                     [value("y", (20, 30)), value("t", None)], imports=[helper.make_opsetid("my.ops", 1)])  # fmt: skip
    model = read_model(proto)
    np.testing.assert_array_equal(constant(model, "w").data, table)
    np.testing.assert_array_equal(model.result("t").input_value(0).node.attributes["table"], table)


# -- element types and storage ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e4m3fn", "float8_e8m0fnu", "bfloat16"],
)
@pytest.mark.parametrize("count", [5, 5001])
def test_narrow_types_are_read_packed_or_not_inline_or_in_place(dtype: str, count: int) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype))
    numbers = np.arange(count) if "float" in dtype else np.arange(count) % 4
    array = numbers.astype(np.float32).astype(kind)
    tensor = numpy_helper.from_array(array, "w")
    proto = model_of([node("Identity", "w", "y")], [], [value("y", (count,), tensor.data_type)], [tensor], opset=25)
    proto.ir_version = 13
    found = constant(read_model(proto), "w")
    assert found.data.dtype == kind
    assert found.data.astype(np.float32).tobytes() == array.astype(np.float32).tobytes()
    found.release()
    assert found.data.shape == (count,)


TYPED = [
    (TensorProto.FLOAT, np.float32), (TensorProto.DOUBLE, np.float64), (TensorProto.INT64, np.int64),
    (TensorProto.INT32, np.int32), (TensorProto.INT8, np.int8), (TensorProto.UINT8, np.uint8),
    (TensorProto.UINT16, np.uint16), (TensorProto.UINT32, np.uint32), (TensorProto.UINT64, np.uint64),
    (TensorProto.BOOL, np.bool_), (TensorProto.FLOAT16, np.float16), (TensorProto.COMPLEX64, np.complex64),
    (TensorProto.COMPLEX128, np.complex128), (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2), (TensorProto.INT4, ml_dtypes.int4),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype"), TYPED, ids=lambda v: getattr(v, "__name__", str(v)))
@pytest.mark.parametrize("count", [7, 3001])
def test_typed_fields_hold_what_they_hold_in_raw_form(kind: int, dtype: Any, count: int) -> None:
    numbers = np.arange(count) % 7 - (0 if np.dtype(dtype).kind in "bu" else 3)
    array = numbers.astype(np.float32).astype(dtype)
    tensor = helper.make_tensor("w", kind, [count], array)
    assert not tensor.HasField("raw_data")
    proto = model_of([node("Identity", "w", "y")], [], [value("y", (count,), kind)], [tensor], opset=21)
    found = constant(read_model(proto.SerializeToString()), "w").data
    assert found.dtype == np.dtype(dtype)
    assert found.tobytes() == array.tobytes()


def test_packed_integers_of_every_length_are_decoded_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.array([0, 1, 127, 128, -1, 2**63 - 1, -(2**63), 300, 2**35] * 50, np.int64)
    packed = TensorProto(int64_data=numbers.tolist()).SerializeToString()
    payload = packed[packed.index(b"\x3a") + 3 :]
    monkeypatch.setattr("engine.onnx.wire._CHUNK", 64)
    np.testing.assert_array_equal(decode_varints(payload, np.dtype(np.int64)), numbers)


# -- types ------------------------------------------------------------------------------------------------


def test_types_are_inferred_through_computed_shapes() -> None:
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s zero", "n", axis=0), node("Unsqueeze", "n first", "n1"),
        node("Concat", "n1 tail", "target", axis=0), node("Reshape", "x target", "y"),
    ]  # fmt: skip
    integers = {"zero": np.array(0), "first": np.array([0]), "tail": np.array([12, 64])}
    constants = [numpy_helper.from_array(v.astype(np.int64), name) for name, v in integers.items()]
    model = read_model(model_of(nodes, [value("x", ("batch", 768))], [value("y", None)], constants))
    assert model.result("y").type == TensorType(f32, PartialShape(["batch", 12, 64]))


def test_dimensions_that_inference_named_itself_are_unknown_and_the_files_own_symbols_stay() -> None:
    nodes = [node("NonZero", "x", "nz"), node("Cast", "nz", "y", to=FLOAT), node("Relu", "x", "z")]
    model = read_model(model_of(nodes, [value("x", ("unk__0", 3))], [value("y", (2, "hits")), value("z", None)]))
    nonzero = model.result("y").input_value(0).node.input_value(0)
    assert nonzero.shape == PartialShape([2, None])
    assert model.result("y").type == TensorType(f32, PartialShape([2, "hits"]))
    assert model.result("z").type == TensorType(f32, PartialShape(["unk__0", 3]))


def test_a_declared_output_adds_what_inference_cannot_know_and_yields_where_it_is_wrong() -> None:
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    unsqueeze = node("Unsqueeze", "x a", "y")
    model = read_model(model_of([unsqueeze], [value("x"), value("a", (1,), INT64)], [value("y", (2, 1, 3))]))
    assert model.result("y").type == TensorType(f32, PartialShape([2, 1, 3]))
    wrong = model_of([node("Unsqueeze", "x axes", "y")], outputs=[value("y", (2, 7, "n"))], initializers=[axes])
    assert read_model(wrong).result("y").type == TensorType(f32, PartialShape([2, 1, 3]))


def test_an_output_declared_with_another_element_type_is_refused() -> None:
    with pytest.raises(TypeInferenceError, match=r"output `y` is declared as i64\[2,3\], but .* gives f32"):
        read_model(model_of([node("Relu", "x", "y")], outputs=[value("y", (2, 3), INT64)]))


def test_a_wrong_value_info_does_not_stop_inference() -> None:
    proto = model_of([node("Relu", "x", "a"), node("Neg", "a", "y")], outputs=[value("y", None)])
    proto.graph.value_info.append(value("a", (9, 9, 9)))
    assert read_model(proto).result("y").type == TensorType(f32, PartialShape([2, 3]))


def test_pooling_of_an_old_opset_has_the_shape_that_runtimes_compute() -> None:
    pool = node("MaxPool", "x", "p", kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1)
    proto = model_of([pool, node("Relu", "p", "y")], [value("x", (1, 1, 2, 2))], [value("y", None)], opset=12)
    model = read_model(proto)
    (computed,) = infer(model, {"x": np.ones((1, 1, 2, 2), np.float32)})
    assert model.result("y").type == TensorType(f32, PartialShape(computed.shape))


def test_a_slice_of_a_constant_from_a_computed_start_has_its_bounds() -> None:
    table = numpy_helper.from_array(np.zeros((10, 6), np.float32), "table")
    end = numpy_helper.from_array(np.array([10]), "end")
    nodes = [node("Add", "x x", "start"), node("Slice", "table start end", "y")]
    model = read_model(model_of(nodes, [value("x", [1], INT64)], [value("y", None)], [table, end]))
    assert str(model.results[0].input_value(0).type) == "f32[0..10,6]"


def test_a_length_of_zero_stays_where_others_are_resized() -> None:
    """ONNX does not infer it; a device that needs to know all lengths would refuse the model."""
    sizes = numpy_helper.from_array(np.array([8, 2]), "sizes")
    resize = node("Resize", "x _ _ sizes", "y", axes=[1, 2])
    model = read_model(model_of([resize], [value("x", (0, 4, 5))], [value("y", None)], [sizes], opset=19))
    assert model.outputs[0].shape == PartialShape((0, 8, 2))


def test_a_transposed_convolution_that_is_to_be_as_long_as_its_input_has_that_length() -> None:
    """ONNX's inference adds the output's padding, which runtimes do not."""
    weights = numpy_helper.from_array(np.ones((2, 3, 3), np.float32), "w")
    nodes = [
        node("ConvTranspose", "x w", "t", auto_pad="SAME_UPPER", strides=[2], output_padding=[1], kernel_shape=[3]),
        node("Relu", "t", "y"),
    ]
    proto = model_of(nodes, [value("x", (1, 2, 5))], [value("y", None)], [weights])
    model = read_model(proto)
    assert model.outputs[0].shape == PartialShape((1, 3, 10))
    (found,) = infer(model, {"x": np.ones((1, 2, 5), np.float32)})
    assert found.shape == (1, 3, 10)


def test_imported_types_stay_through_validation() -> None:
    nodes = [node("Shape", "x", "s"), node("ConstantOfShape", "s", "o"), node("Relu", "o", "y")]
    model = read_model(model_of(nodes, outputs=[value("y", None)]))
    assert model.validate() is False
    assert model.result("y").type == TensorType(f32, PartialShape([2, 3]))


def test_sequences_strings_and_optionals_have_their_types() -> None:
    text = numpy_helper.from_array(np.array(["a", "b"], object), "t")
    nodes = [node("SequenceConstruct", "x x", "seq"), node("Identity", "t", "text")]
    outputs = [helper.make_tensor_sequence_value_info("seq", FLOAT, None), value("text", (2,), TensorProto.STRING)]
    model = read_model(model_of(nodes, outputs=outputs, initializers=[text]))
    assert model.result("seq").type == SequenceType(TensorType(f32, PartialShape([2, 3])))
    assert model.result("text").type == TensorType(string, PartialShape([2]))


# -- versions and domains ---------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [1, 6, 7, 9, 11, 13, 21])
def test_models_of_every_age_compute_what_they_did(opset: int) -> None:
    dropout = node("Dropout", "x", "a", **({"is_test": 1} if opset < 7 else {}))
    add = node("Add", "a b", "c", **({"broadcast": 1, "axis": 0} if opset < 7 else {}))
    bias = np.array([[1.0], [2.0]] if opset >= 7 else [1.0, 2.0], np.float32)
    softmax = node("Softmax", "c", "y", axis=0)
    proto = model_of([dropout, add, softmax], initializers=[numpy_helper.from_array(bias, "b")], opset=opset)
    x = np.array([[1, 2, 3], [4, 4, 4]], np.float32)
    # Below 13, Softmax takes all axes from its own on as one.
    shifted = x + np.array([[1], [2]], np.float32)
    axis = None if opset < 13 else 0
    exponents = np.exp(shifted - shifted.max())
    expected = exponents / exponents.sum(axis=axis, keepdims=True)
    (found,) = infer(read_model(proto), {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_nodes_that_an_upgrade_makes_have_names_below_the_nodes() -> None:
    model = read_model(model_of([node("ReduceSum", "x", "y", name="sum", axes=[1])], opset=11,
                                outputs=[value("y", (2, 1))]))  # fmt: skip
    assert all(n.has_own_name for n in model.ordered_nodes())
    assert model.node("sum").input_value(1).node.friendly_name == "sum/Constant"


def test_a_model_without_opsets_is_of_the_time_before_them() -> None:
    proto = model_of([node("Relu", "x", "y")], ir_version=2)
    proto.ClearField("opset_import")
    assert read_model(proto).rt_info["onnx"]["opsets"] == {"": 1}
    proto.ir_version = 8
    with pytest.raises(ModelReadError, match="imports no opset"):
        read_model(proto)


def test_attributes_of_the_first_ir_version_do_not_state_their_type() -> None:
    concat = node("Concat", "x x", "y", axis=1)
    concat.attribute[0].ClearField("type")
    (found,) = operators(read_model(model_of([concat], outputs=[value("y", (2, 6))], opset=4, ir_version=1)))
    assert found.attributes["axis"] == 1


def test_the_long_name_of_the_onnx_domain_means_the_same() -> None:
    proto = model_of([helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")])
    proto.opset_import[0].domain = "ai.onnx"
    (relu,) = operators(read_model(proto))
    assert (relu.domain, relu.output(0).shape) == ("", PartialShape([2, 3]))


def test_custom_operators_are_kept_with_what_is_known_of_them() -> None:
    values: dict[str, Any] = {"weights": [0.5, 1.0], "mode": "soft", "flag": b"\xff"}
    custom = helper.make_node("Blend", ["x"], ["a", "b"], domain="my.ops", **values)
    proto = model_of([custom, node("Relu", "a", "y")], outputs=[value("y", None), value("b", None)],
                     imports=[helper.make_opsetid("my.ops", 4)])  # fmt: skip
    proto.graph.output[1].ClearField("type")
    proto.graph.value_info.append(value("a", (4, 5)))
    model = read_model(proto)
    found = model.node("a")
    assert (found.domain, found.op_type) == ("my.ops", "Blend")
    assert found.attributes == {"weights": (0.5, 1.0), "mode": "soft", "flag": b"\xff"}
    assert model.result("y").type == TensorType(f32, PartialShape([4, 5]))
    assert model.result("b").type == UNKNOWN
    assert model.opset_imports == {"my.ops": 4}


def test_unknown_operators_and_opsets_are_named() -> None:
    with pytest.raises(UnknownOperatorError, match="NoSuchOp `bad`"):
        read_model(model_of([node("NoSuchOp", "x", "y", name="bad")]))
    with pytest.raises(UnsupportedError, match="opset 99"):
        read_model(model_of([node("Relu", "x", "y")], opset=99))


# -- bodies -----------------------------------------------------------------------------------------------


def branch(name: str, nodes: Sequence[onnx.NodeProto], output: str, **parts: Any) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(output, None)], **parts)


def if_model() -> onnx.ModelProto:
    big = numpy_helper.from_array(np.full((20, 30), 2, np.float32), "big")
    small = numpy_helper.from_array(np.array([3], np.float32), "small")
    inner = branch("inner", [node("Mul", "a big", "i")], "i")
    nested = helper.make_node("If", ["flag"], ["n"], name="inner_if", then_branch=inner,
                              else_branch=branch("other", [node("Neg", "x", "o")], "o"))  # fmt: skip
    local = numpy_helper.from_array(np.array([5], np.float32), "local")
    then = branch("then", [nested, node("Add", "n local", "t")], "t", initializer=[local])
    otherwise = branch("else", [node("Mul", "a small", "e")], "e")
    choose = helper.make_node("If", ["flag"], ["y"], name="choose", then_branch=then, else_branch=otherwise)
    inputs = [value("x", (20, 30)), value("flag", (), BOOL)]
    return model_of([node("Relu", "x", "a"), choose], inputs, [value("y", (20, 30))], [big, small])


def test_what_bodies_read_from_around_them_becomes_inputs_of_their_node() -> None:
    model = read_model(if_model())
    choose = model.node("choose")
    then, otherwise = choose.bodies["then_branch"], choose.bodies["else_branch"]
    assert [c.friendly_name for c in then.captures] == ["flag", "x", "a", "big"]
    assert [v.name for v in choose.captured_values("then_branch")] == ["flag", "x", "a", "big"]
    assert choose.num_formal_inputs == 1
    assert [c.friendly_name for c in otherwise.captures] == ["a"], "a small constant is copied into the body"
    inner = then.node("inner_if")
    assert [v.node for v in inner.captured_values("then_branch")] == then.captures[2:]
    assert inner.bodies["then_branch"].captures[0].output(0).shape == PartialShape([20, 30])


@pytest.mark.parametrize("flag", [True, False])
def test_bodies_compute_what_they_did(flag: bool) -> None:
    x = np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30)
    relu = np.maximum(x, 0)
    (found,) = infer(read_model(if_model()), {"x": x, "flag": np.array(flag)})
    np.testing.assert_allclose(found, relu * 2 + 5 if flag else relu * 3, rtol=1e-6)


def test_a_name_in_a_body_hides_the_one_around_it() -> None:
    hidden = numpy_helper.from_array(np.array([4], np.float32), "w")
    then = branch("then", [node("Mul", "x w", "t")], "t", initializer=[hidden])
    otherwise = branch("else", [node("Mul", "x w", "e")], "e")
    outer = numpy_helper.from_array(np.array([7], np.float32), "w")
    proto = model_of([helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)],
                     [value("x"), value("c", (), BOOL)], [value("y")], [outer])  # fmt: skip
    bodies = operators(read_model(proto))[0].bodies
    read = {key: body.results[0].input_value(0).node.input_value(1).node for key, body in bodies.items()}
    assert {key: float(n.data[0]) for key, n in read.items() if isinstance(n, Constant)} == {
        "then_branch": 4,
        "else_branch": 7,
    }


def test_loops_carry_state_and_captures() -> None:
    body = helper.make_graph(
        [node("Add", "state x", "next"), node("Identity", "go", "still")],
        "body",
        [value("i", (), INT64), value("go", (), BOOL), value("state", None)],
        [value("still", (), BOOL), value("next", None)],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body, name="loop")
    model = read_model(model_of([loop], [value("x"), value("n", (), INT64)]))
    found = model.node("loop")
    assert [v and v.name for v in found.input_values] == ["n", None, "x", "x"]
    (y,) = infer(model, {"x": np.ones((2, 3), np.float32), "n": np.array(3)})
    np.testing.assert_array_equal(y, np.full((2, 3), 4, np.float32))


def test_values_that_are_listed_as_outputs_twice_have_names_of_their_own() -> None:
    """PyTorch's older exporter writes this for `return y, y`; onnxruntime also gives both."""
    listed = [value(name) for name in ("y", "x", "y", "y_1", "y", "w")]
    nodes = [node("Neg", "x", "y"), node("Abs", "x", "y_1")]
    weight = numpy_helper.from_array(np.float32([[1, 2, 3]] * 2), "w")
    model = read_model(model_of(nodes, outputs=listed, initializers=[weight]))
    assert [result.friendly_name for result in model.results] == ["y", "x", "y_2", "y_1", "y_3", "w"]
    x = np.float32([[1, -2, 3]] * 2)
    for device in ("CPU", "TEMPLATE"):
        result = Core().compile_model(model, device)(x)
        found = [result[index] for index in range(6)]
        for index, (got, expected) in enumerate(zip(found, [-x, x, -x, abs(x), -x, 0 * x + [1, 2, 3]], strict=True)):
            np.testing.assert_array_equal(got, expected)
            got += 1  # which changes no other result
            assert not any(np.may_share_memory(got, other) for other in found[index + 1 :])
    np.testing.assert_array_equal(infer(model, {"x": x})[2], -x)


def test_bodies_may_list_an_output_twice() -> None:
    names = [value("still", (), BOOL), value("next"), value("next")]
    steps = [node("Add", "state x", "next"), node("Identity", "go", "still")]
    body = helper.make_graph(steps, "body", [value("i", (), INT64), value("go", (), BOOL), value("state")], names)
    loop = helper.make_node("Loop", ["n", "", "x"], ["y", "z"], body=body, name="loop")
    model = read_model(model_of([loop], [value("x"), value("n", (), INT64)], [value("y"), value("z", None)]))
    y, z = infer(model, {"x": np.ones((2, 3), np.float32), "n": np.array(2)})
    np.testing.assert_array_equal(z, np.stack([y - 1, y]))


@pytest.mark.parametrize("where", ["node", "initializer", "input"])
def test_a_body_may_define_names_of_the_graphs_around_it(where: str) -> None:
    """Inside, they mean its own values, also for types; in bodies within, too."""
    inner = helper.make_graph([node("Mul", "v v", "z")], "inner", [], [value("z", None, INT64)])
    steps = [node("If", "go", "s", then_branch=inner, else_branch=inner), node("Identity", "go", "still")]
    names, tensors = [value("i", (), INT64), value("go", (), BOOL)], []
    results = [value("still", (), BOOL), value("s", None, INT64)]
    feeds: list[str] = []
    if where == "node":
        steps.insert(0, node("Add", "i i", "v"))
    elif where == "initializer":
        tensors = [numpy_helper.from_array(np.array(6), "v")]
    else:
        names.append(value("v", (), INT64))
        results.insert(1, value("v", (), INT64))
        feeds = ["n"]
    body = helper.make_graph(steps, "body", names, results, tensors)
    loop = helper.make_node("Loop", ["n", "true", *feeds], ["l", "y"][1 - len(feeds) :], body=body)
    constants = [numpy_helper.from_array(np.float32([1, 2, 3]), "v"), numpy_helper.from_array(np.array(True), "true")]
    outputs = [value("y", None, INT64), value("v", (3,))]
    model = read_model(model_of([loop], [value("n", (), INT64)], outputs, constants))
    assert model.result("y").type == TensorType(i64, PartialShape([None]))
    found = Core().compile_model(model, "CPU")({"n": 3})
    np.testing.assert_array_equal(found["y"], {"node": [0, 4, 16], "initializer": [36] * 3, "input": [9] * 3}[where])
    np.testing.assert_array_equal(infer(model, {"n": np.array(3)})[0], found["y"])


# -- local functions --------------------------------------------------------------------------------------


def function_model(function_opset: int = 17) -> onnx.ModelProto:
    inner = node("ReduceSum", "a", "s", name="sum", keepdims=1, **({"axes": [1]} if function_opset < 13 else {}))
    scaled = helper.make_node("Elu", ["s"], ["r"], name="elu")
    scaled.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    function = helper.make_function("my", "Reduce", ["a"], ["r"], [inner, scaled],
                                    [helper.make_opsetid("", function_opset)], ["slope"])  # fmt: skip
    first = helper.make_node("Reduce", ["x"], ["m"], domain="my", name="first", slope=0.5)
    first.metadata_props.add(key="affinity", value="NPU")
    second = helper.make_node("Reduce", ["m"], ["y"], domain="my", name="second", slope=0.25)
    return model_of([first, second], outputs=[value("y", None)], imports=[helper.make_opsetid("my", 1)],
                    functions=[function])  # fmt: skip


def test_local_functions_are_inlined_and_a_calls_metadata_goes_onto_its_nodes() -> None:
    model = read_model(function_model())
    assert [n.op_type for n in operators(model)] == ["ReduceSum", "Elu", "ReduceSum", "Elu"]
    assert [n.rt_info.get("affinity") for n in operators(model)] == ["NPU", "NPU", None, None]
    assert [n.attributes["alpha"] for n in operators(model) if n.op_type == "Elu"] == [0.5, 0.25]


def test_a_function_of_another_opset_keeps_its_meaning() -> None:
    model = read_model(function_model(11))
    x = np.array([[1, 2, -9], [1, 1, 1]], np.float32)
    first = x.sum(axis=1, keepdims=True)
    expected = np.where(first > 0, first, np.expm1(first) * 0.5)
    expected = np.where(expected > 0, expected, np.expm1(expected) * 0.25)
    (found,) = infer(model, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert model.result("y").type == TensorType(f32, PartialShape([2, 1]))
    assert not any("engine.opset" in n.rt_info.get("metadata", {}) for n in operators(model))


def test_functions_that_call_themselves_or_explode_are_refused() -> None:
    def function(name: str, *calls: str) -> onnx.FunctionProto:
        nodes = [helper.make_node(call, ["a"], [f"r{i}"], domain="my") for i, call in enumerate(calls)]
        nodes.append(node("Identity", "a", "r"))
        return helper.make_function("my", name, ["a"], ["r"], nodes, [helper.make_opsetid("", 17)])

    def call(functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
        return model_of([helper.make_node("F0", ["x"], ["y"], domain="my")], functions=functions,
                        imports=[helper.make_opsetid("my", 1)])  # fmt: skip

    with pytest.raises(GraphError, match=r"call themselves: `my\.F0` -> `my\.F1` -> `my\.F0`"):
        read_model(call([function("F0", "F1"), function("F1", "F0")]))
    doubling = [function(f"F{i}", f"F{i + 1}", f"F{i + 1}") for i in range(60)] + [function("F60")]
    with pytest.raises(ModelReadError, match="more than 200000 nodes"):
        read_model(call(doubling))
    chain = [function(f"F{i}", f"F{i + 1}") for i in range(3000)] + [function("F3000")]
    with pytest.raises(ModelReadError, match="deep"):
        read_model(call(chain))


def test_a_graph_of_many_nodes_takes_time_in_proportion() -> None:
    count = 20_000
    nodes = [node("Relu", f"v{i}" if i else "x", f"v{i + 1}" if i + 1 < count else "y") for i in range(count)]
    model = read_model(model_of(nodes[::-1]))
    assert len(operators(model)) == count
    assert model.result("y").type == TensorType(f32, PartialShape([2, 3]))


def test_bfloat16_inputs_and_integer_inputs_have_their_types() -> None:
    inputs = [value("b", (1, "n"), TensorProto.BFLOAT16), value("i", None, INT64)]
    model = read_model(model_of([], inputs, inputs))
    assert [p.type for p in model.parameters] == [
        TensorType(bf16, PartialShape([1, "n"])),
        TensorType(i64, PartialShape.dynamic()),
    ]
