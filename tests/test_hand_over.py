"""What a plugin that wraps a runtime hands to it: one node as a model, or its whole model as ONNX.

If this fails, a runtime is asked about another node than the one it will run, or its results reach the wrong outputs.
onnxruntime and onnx's reference evaluator read what is handed over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from engine import Core, ops
from engine.errors import DeviceError, ModelWriteError, UnsupportedError
from engine.ir import (
    UNKNOWN,
    Constant,
    ElementType,
    Model,
    Node,
    Parameter,
    PartialShape,
    Result,
    SequenceType,
    TensorType,
    Variable,
    bf16,
    f16,
    f32,
    i2,
    i4,
    i8,
    i64,
    u2,
    u4,
    u8,
)
from engine.lowering import NOT_IN_NUMPY, NodeAnswers, answer_query, as_element_type, hand_over, single_node_model
from engine.onnx import model_to_proto, read_model
from engine.ops.cases import OperatorCase, all_cases
from engine.ops.traits import traits_of
from engine.plugin_api import RefusalCause, Support


def run_ort(source: bytes | str, names: list[str], feeds: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return list(session.run(names, feeds))


# -- one node ---------------------------------------------------------------------------------------------


def test_a_node_alone_has_parameters_of_its_input_types_and_its_constants() -> None:
    x = Parameter(f32, ["N", 6], "x")
    relu = ops.Relu(x, friendly_name="relu")
    shape = Constant(np.array([0, 2, 3]), friendly_name="layer7.shape")
    node = ops.Reshape(relu, shape, friendly_name="rows")
    model = Model([node], [x])
    before = str(model)

    alone = single_node_model(node)

    assert str(alone) == (
        'model "rows" {\n'
        "  %0: f32[N,6] = Parameter()  # input_0\n"
        "  %1: i64[3] = Constant([0, 2, 3])  # constant_1\n"
        "  %2: f32[N,2,3] = Reshape(%0, %1)  # rows\n"
        '  result "output_0" = %2\n'
        "}"
    )
    assert str(model) == before
    assert alone.node("constant_1").shares_data(shape)  # type: ignore[attr-defined]


def test_a_value_that_several_ports_read_is_one_parameter() -> None:
    x, y = Parameter(f32, [2], "x"), Parameter(f32, [2], "y")
    assert len(single_node_model(ops.Mul(ops.Relu(x), ops.Relu(x))).parameters) == 2
    relu = ops.Relu(x)
    node = ops.Sum(relu, ops.Relu(y), relu)
    alone = single_node_model(node)
    assert [parameter.friendly_name for parameter in alone.parameters] == ["input_0", "input_1"]
    assert [value and value.node.friendly_name for value in alone.ordered_nodes()[2].input_values] == [
        "input_0", "input_1", "input_0",
    ]  # fmt: skip


def test_omitted_inputs_and_unread_outputs_stay_as_they_are() -> None:
    x = Parameter(f32, [3, 2, 4], "x")
    weights = [Constant(np.ones(shape, np.float32)) for shape in ((1, 20, 4), (1, 20, 5))]
    h = Constant(np.zeros((1, 2, 5), np.float32))
    node = Node("LSTM", [x, *weights, None, None, h], {"hidden_size": 5}, num_outputs=3, output_names=["", "h", ""])
    model = Model([node.output(1)], [x])
    alone = single_node_model(node)
    assert [result.friendly_name for result in alone.results] == ["output_1"]
    proto = model_to_proto(alone)
    onnx.checker.check_model(proto, full_check=True)
    assert list(proto.graph.node[0].input) == ["input_0", "constant_1", "constant_2", "", "", "constant_5"]
    assert list(proto.graph.node[0].output) == ["", "output_1", ""]
    data = np.ones((3, 2, 4), np.float32)
    (given,) = run_ort(proto.SerializeToString(), ["output_1"], {"input_0": data})
    (expected,) = run_ort(model_to_proto(model).SerializeToString(), ["h"], {"x": data})
    np.testing.assert_array_equal(given, expected)


def test_large_constants_become_parameters_on_request() -> None:
    x = Parameter(f32, [1, 300], "x")
    node = ops.MatMul(x, Constant(np.ones((300, 2), np.float32)))
    assert len(single_node_model(node, max_constant_bytes=2400).parameters) == 1
    alone = single_node_model(node, max_constant_bytes=2399)
    assert [str(parameter.type) for parameter in alone.parameters] == ["f32[1,300]", "f32[300,2]"]


def test_a_node_with_bodies_has_what_they_capture() -> None:
    branch = {
        name: helper.make_graph(
            [helper.make_node(op, ["hidden", "two"], ["r"])], name, [], [helper.make_tensor_value_info("r", 1, [2])]
        )
        for name, op in (("then_branch", "Mul"), ("else_branch", "Sub"))
    }
    graph = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["hidden"]), helper.make_node("If", ["c"], ["y"], name="choose", **branch)],
        "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info("y", 1, [2])],
        [numpy_helper.from_array(np.array([2, 2], np.float32), "two")],
    )
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    alone = single_node_model(model.node("choose"))
    proto = model_to_proto(alone)
    onnx.checker.check_model(proto, full_check=True)
    names = [value.name for value in proto.graph.input]
    assert names == ["input_0", "input_1"]
    (given,) = run_ort(
        proto.SerializeToString(), ["output_0"], {"input_0": np.array(True), "input_1": np.array([1, 5], np.float32)}
    )
    assert given.tolist() == [2, 10]


def test_a_constant_that_is_an_input_of_its_file_is_no_input_of_the_question() -> None:
    scale = numpy_helper.from_array(np.array([2], np.float32), "scale")
    x, y, s = (helper.make_tensor_value_info(name, 1, [1]) for name in "xys")
    s.name = "scale"
    graph = helper.make_graph([helper.make_node("Mul", ["x", "scale"], ["y"], name="mul")], "g", [x, s], [y], [scale])
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert [value.name for value in model_to_proto(model).graph.input] == ["x", "scale"]
    assert [value.name for value in model_to_proto(single_node_model(model.node("mul"))).graph.input] == ["input_0"]
    with hand_over(model) as given:
        assert [value.name for value in onnx.load_from_string(given.source).graph.input] == ["x"]
    assert list(model.overridable_constants) == ["scale"]


def test_other_values_than_tensors_are_parameters_too() -> None:
    sequence = Parameter(SequenceType(TensorType(f32, PartialShape([2]))), friendly_name="s")
    alone = single_node_model(ops.ConcatFromSequence(sequence, axis=0))
    onnx.checker.check_model(model_to_proto(alone), full_check=True)
    assert alone.parameters[0].type == sequence.type


@pytest.mark.parametrize("case", list(all_cases().values())[::60], ids=str)
def test_a_node_alone_computes_what_it_does_in_its_model(case: OperatorCase) -> None:
    model, feeds = case.model()
    node = model.results[0].input_value(0).node
    if traits_of(node).random:
        pytest.skip("random")
    core = Core()
    alone = core.compile_model(single_node_model(node), "TEMPLATE")
    inputs = {
        name: feeds[node.input_value(int(name.removeprefix("input_"))).node.friendly_name]
        for name in (port.name for port in alone.inputs)
    }
    given, expected = alone(inputs), core.compile_model(model, "TEMPLATE")(feeds)
    for index in range(len(model.results)):
        assert np.asarray(given[index]).tobytes() == np.asarray(expected[index]).tobytes()


# -- remembered answers -----------------------------------------------------------------------------------


def layers(count: int, op: Any = ops.Relu) -> tuple[Model, list[Node]]:
    x = value = Parameter(f32, ["N", 8], "x")
    nodes = []
    for index in range(count):
        weights = Constant(np.full((8, 64), index, np.float32), friendly_name=f"layer{index}.weights")
        back = Constant(np.full((64, 8), index, np.float32))
        value = ops.MatMul(op(ops.MatMul(value, weights)), back)
        value.rt_info["metadata"] = {"scope": f"layer{index}"}
        nodes += [value, value.input_value(0).node]
    return Model([value], [x]), nodes


def test_equal_layers_are_asked_about_once() -> None:
    asked: list[str] = []

    def ask(model: Model) -> str:
        asked.append(model.ordered_nodes()[-1 - len(model.results)].op_type)
        return asked[-1]

    answers = NodeAnswers(ask)
    model, _ = layers(10)
    nodes = [node for node in model.ordered_nodes() if node.op_type in ("MatMul", "Relu")]
    assert [answers.answer(node) for node in nodes] == [node.op_type for node in nodes]
    assert sorted(asked) == ["MatMul", "MatMul", "Relu"]
    assert len(answers) == 3


def test_what_differs_for_a_runtime_is_asked_again() -> None:
    x, y = Parameter(f32, ["N", 8], "x"), Parameter(f32, [4, 8], "y")
    table = np.zeros((600,), np.float32)
    nodes = [
        ops.Softmax(x, axis=1),
        ops.Softmax(x, axis=0),
        ops.Softmax(y, axis=1),
        ops.Softmax(Parameter(f32, [4, 8]), axis=1),  # as the one before it
        ops.Mul(y, y),
        ops.Mul(y, Parameter(f32, [4, 8])),
        ops.Mul(y, Constant(np.zeros((4, 8), np.float32))),
        ops.Mul(y, Constant(np.ones((4, 8), np.float32))),
        ops.Gather(Constant(table), Constant(np.array([1]))),
        ops.Gather(Constant(table + 1), Constant(np.array([1]))),  # as the one before it: only small values count
        ops.Gather(Parameter(f32, [600]), Constant(np.array([1]))),
    ]
    answers = NodeAnswers(lambda model: object())
    given = [answers.answer(node) for node in nodes]
    assert [given.index(each) for each in given] == [0, 1, 2, 2, 4, 5, 6, 7, 8, 8, 10]


def test_an_answer_that_raised_is_asked_for_again() -> None:
    replies = iter([OSError("busy"), "yes"])

    def ask(model: Model) -> str:
        reply = next(replies)
        if isinstance(reply, OSError):
            raise reply
        return reply

    answers, node = NodeAnswers(ask), ops.Relu(Parameter(f32, [1]))
    with pytest.raises(OSError, match="busy"):
        answers.answer(node)
    assert answers.answer(node) == answers.answer(node) == "yes"


def test_a_compilation_reuses_what_a_query_was_told_and_asks_about_what_has_changed() -> None:
    asked: list[str] = []

    def ask(model: Model) -> Support:
        node = model.results[0].input_value(0).node
        asked.append(node.op_type)
        if node.attributes.get("axis") == 0:
            return Support.refused(RefusalCause.ATTRIBUTE, "axis is 0")
        return Support.native()

    answers = NodeAnswers(ask)
    model, _ = layers(3, lambda x: ops.Softmax(x, axis=1))
    answer_query(model, model, answers.answer).require_supported("ACME")
    assert sorted(asked) == ["MatMul", "MatMul", "Softmax"]
    part = model.clone()
    answer_query(part, part, answers.answer).require_supported("ACME")
    assert len(asked) == 3, "the copy that HETERO compiles has the same nodes"
    node = next(node for node in model.ordered_nodes() if node.op_type == "Softmax")
    node.friendly_name = "middle"
    node.set_attribute("axis", 0)
    model.validate()
    with pytest.raises(UnsupportedError, match=r"ACME cannot run `middle` \(attribute\): axis is 0"):
        answer_query(model, model, answers.answer).require_supported("ACME")
    assert asked[3:] == ["Softmax"]


# -- whole models -----------------------------------------------------------------------------------------


def test_inputs_and_outputs_are_named_in_the_models_order() -> None:
    a, b, unread = Parameter(f32, [2], "a"), Parameter(f32, [2], "b"), Parameter(u8, [1], "unread")
    model = Model([ops.Sub(a, b, friendly_name="late"), ops.Add(b, a, friendly_name="early")], [b, unread, a])
    with hand_over(model) as given:
        assert isinstance(given.source, bytes)
        assert (given.inputs, given.outputs) == (("b", "unread", "a"), ("late", "early"))
        session = onnxruntime.InferenceSession(given.source, providers=["CPUExecutionProvider"])
        assert tuple(each.name for each in session.get_inputs()) == given.inputs
        assert tuple(each.name for each in session.get_outputs()) == given.outputs


def test_empty_names_and_names_of_an_input_and_an_output_are_replaced() -> None:
    parameters = [Parameter(f32, [1], name) for name in ("", "x", "y", "output_1")]
    values = [ops.Neg(parameters[0]), ops.Abs(parameters[1]), parameters[1], parameters[2], parameters[2]]
    names = ["x", "", "y", "z", "x_1"]
    model = Model([Result(value, name) for value, name in zip(values, names, strict=True)], parameters)
    with pytest.raises(ModelWriteError):
        model_to_proto(model)
    with hand_over(model) as given:
        assert given.inputs == ("input_0", "x", "y", "output_1")
        assert len({*given.inputs, *given.outputs}) == 9
        feeds = dict(zip(given.inputs, np.array([[1], [-2], [3], [4]], np.float32), strict=True))
        results = run_ort(given.source, list(given.outputs), feeds)
    assert [value.item() for value in results] == [-1, 2, -2, 3, 3]
    assert [result.friendly_name for result in model.results] == names


def test_an_output_that_is_an_input_keeps_its_name() -> None:
    x = Parameter(f32, [1], "x")
    with hand_over(Model([x, ops.Relu(x, friendly_name="y")], [x])) as given:
        assert given.outputs == ("x", "y")
        assert [node.op_type for node in onnx.load_from_string(given.source).graph.node] == ["Relu"]


def test_variables_are_the_last_inputs_and_outputs() -> None:
    past, x, total = Parameter(f32, [1], "past"), Parameter(f32, [1], "x"), Parameter(f32, [1], "total")
    now, sum_ = ops.Identity(x, friendly_name="now"), ops.Add(total, x, friendly_name="sum")
    model = Model([now, sum_, ops.Sub(past, x, friendly_name="y")], [past, x, total])
    model.add_variable(Variable("a", "past", "now", np.zeros(1, np.float32)))
    model.add_variable(Variable("b", "total", "sum", np.zeros(1, np.float32)))
    with hand_over(model) as given:
        assert (given.inputs, given.outputs) == (("x", "past", "total"), ("y", "now", "sum"))
        proto = onnx.load_from_string(given.source)
        assert [value.name for value in proto.graph.input] == list(given.inputs)
        assert not proto.metadata_props
    assert len(model.variables) == 2


def test_fused_operators_become_onnx_and_the_opset_is_the_lowest() -> None:
    x = Parameter(f32, ["N", 4], "x")
    relu = ops.Relu(x, friendly_name="y")
    relu.rt_info |= {"affinity": "ACME", "metadata": {"scope": "head"}, "doc_string": "..."}
    with hand_over(Model([relu], [x])) as given:
        proto = onnx.load_from_string(given.source)
    assert proto.opset_import[0].version == 13
    assert proto.ir_version == 7
    assert not proto.graph.node[0].metadata_props
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"


def test_large_models_are_files_that_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Parameter(f32, [1, 64], "x")
    weights = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    model = Model([ops.MatMul(x, Constant(weights), friendly_name="y")], [x])
    with hand_over(model, as_file=True, folder=tmp_path) as given:
        assert isinstance(given.source, str)
        (folder,) = tmp_path.iterdir()
        assert [path.name for path in folder.iterdir()] == ["model.onnx"]
    monkeypatch.setattr("engine.onnx.exporter.MAX_INLINE_BYTES", 10_000)
    monkeypatch.setattr("engine.onnx.writer.MAX_INLINE_BYTES", 10_000)
    with hand_over(model, folder=tmp_path) as given:
        assert isinstance(given.source, str)
        (folder,) = tmp_path.iterdir()
        assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "model.onnx.data"]
        session = onnxruntime.InferenceSession(given.source, providers=["CPUExecutionProvider"])
    assert not any(tmp_path.iterdir())
    data = np.ones((1, 64), np.float32)
    (result,) = session.run(list(given.outputs), {given.inputs[0]: data})
    np.testing.assert_allclose(result, data @ weights)


# -- element types that a binding of numpy lacks ------------------------------------------------------------


def every_value(element_type: ElementType) -> np.ndarray[Any, Any]:
    """All values of a type of up to 8 bits, or many of one with 16."""
    dtype = np.dtype(element_type.numpy)
    if dtype.itemsize == 2:
        return np.arange(65536, dtype=np.uint16).view(dtype)
    if element_type.is_integral:
        low = -(1 << (element_type.bits - 1)) if element_type.is_signed else 0
        return np.arange(low, low + (1 << element_type.bits)).astype(np.int8).astype(dtype)
    return np.arange(1 << element_type.bits, dtype=np.uint8).view(dtype)


@pytest.mark.parametrize("element_type", [f16, *sorted(NOT_IN_NUMPY, key=str)], ids=str)
def test_widening_changes_no_value(element_type: ElementType) -> None:
    """Through the engine's reference evaluator, since no runtime has all types."""
    x = Parameter(element_type, ["N"], "x")
    model = Model([ops.Identity(x, friendly_name="y"), Result(x, "z")], [x])
    with hand_over(model, widen={element_type}) as given:
        wide = i8 if element_type in (i4, i2) else u8 if element_type in (u4, u2) else f32
        assert given.ports.input_types == (wide,)
        assert given.ports.output_types == (wide, wide)
        widened = read_model(given.source)
    assert [node.type for node in widened.parameters] == [TensorType(wide, x.output(0).shape)]
    values = every_value(element_type)
    network = Core().compile_model(widened, "TEMPLATE")
    plain = as_element_type(values, given.ports.input_types[0])
    are_numbers = ~np.isnan(as_element_type(plain, f32))
    for result in network({given.inputs[0]: plain}).values():
        narrow = as_element_type(result, element_type)
        np.testing.assert_array_equal(narrow[are_numbers].view(np.uint8), values[are_numbers].view(np.uint8))
        assert np.isnan(as_element_type(narrow, f32)[~are_numbers]).all()


def test_a_runtime_computes_in_a_type_that_its_binding_lacks() -> None:
    x, w = Parameter(bf16, [2, 3], "x"), Parameter(f32, [3], "w")
    wide = ops.Cast(x, to=f32.onnx)
    y = ops.Cast(ops.Add(wide, wide), to=bf16.onnx, friendly_name="y")
    model = Model([y, ops.Neg(w, friendly_name="z")], [x, w])
    with hand_over(model, widen=NOT_IN_NUMPY) as given:
        assert (given.ports.input_types, given.ports.output_types) == ((f32, f32), (f32, f32))
        data = np.arange(6, dtype=np.float32).reshape(2, 3).astype(bf16.numpy)
        feeds = given.ports.feeds([data, np.ones(3, np.float32)])
        values = run_ort(given.source, list(given.outputs), feeds)
    doubled, z = given.ports.results(values)
    np.testing.assert_array_equal(doubled, data + data)
    assert doubled.dtype == bf16.numpy
    assert z.tolist() == [-1, -1, -1]
    for wrong, words in [
        (values[:1], "returned 1 values; expected 2"),
        ([values[0], values[1].astype(np.float64)], "float64 for output `z`; expected an array of f32"),
        ([values[0], [1.0]], "list for output `z`; expected an array of f32"),
    ]:
        with pytest.raises(DeviceError, match=words):
            given.ports.results(wrong)
    assert str(x.type) == "bf16[2,3]"


def test_types_without_a_wider_one_are_refused() -> None:
    x = Parameter(i64, [1], "x")
    with pytest.raises(UnsupportedError, match="i64 cannot be widened"), hand_over(Model([x], [x]), widen={i64}):
        pass


def test_values_that_are_not_tensors_have_no_element_type() -> None:
    s = Parameter(SequenceType(TensorType(f32, PartialShape([1]))), friendly_name="s")
    with hand_over(Model([ops.SequenceLength(s, friendly_name="n")], [s]), widen=NOT_IN_NUMPY) as given:
        assert (given.ports.input_types, given.ports.output_types) == ((None,), (i64,))


def test_a_result_whose_type_only_the_runtime_knows_is_taken_as_it_is() -> None:
    x = Parameter(f32, [1], "x")
    node = Node("Own", [x], domain="com.example", types=[UNKNOWN], friendly_name="y")
    with hand_over(Model([node], [x])) as given:
        (value,) = given.ports.results([np.array([1.5])])
    assert value.dtype == np.float64


def test_the_example_of_the_docstring_runs() -> None:
    x = Parameter(f32, [2], "x")
    with hand_over(Model([ops.Relu(x)], [x])) as given:
        session = ReferenceEvaluator(onnx.load_from_string(given.source))
    (result,) = session.run(list(given.outputs), dict(zip(given.inputs, [np.array([-1, 2], np.float32)], strict=True)))
    assert result.tolist() == [0, 2]
