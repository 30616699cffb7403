"""Inputs whose shapes contradict each other are refused when a model is read, whatever its outputs are declared to be.

A kernel trusts what the model says: a product of [2,3] by [4,5] that is declared as [2,5] was computed once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from engine import Core, ops
from engine.errors import EngineError, ModelError, TypeInferenceError
from engine.ir import Model, PartialShape, TensorType, f32, i64
from engine.onnx import read_model

FLOAT, U8, I32, INT64, BOOL = (
    TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
)  # fmt: skip


class Call(NamedTuple):
    """A node that contradicts itself: inputs are shapes, values of constants, or None where they are omitted."""

    op_type: str
    inputs: Sequence[Any]
    output: Sequence[int]
    attributes: dict[str, Any] = {}
    kinds: dict[int, int] = {}
    result: int = FLOAT
    opset: int = 21


def value(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def model_of(call: Call, declared: Sequence[int | str] | None) -> onnx.ModelProto:
    names = ["" if given is None else f"x{index}" for index, given in enumerate(call.inputs)]
    node = helper.make_node(call.op_type, names, ["y"], name="culprit", **call.attributes)
    inputs, weights = [], []
    for index, source in enumerate(call.inputs):
        if isinstance(source, np.ndarray):
            weights.append(numpy_helper.from_array(source, f"x{index}"))
        elif source is not None:
            inputs.append(value(f"x{index}", source, call.kinds.get(index, FLOAT)))
    graph = helper.make_graph([node], "g", inputs, [value("y", declared, call.result)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", call.opset)], ir_version=10)


def assert_refused(proto: onnx.ModelProto, name: str = "culprit") -> None:
    with pytest.raises(ModelError, match=name):
        read_model(proto)


IMAGE = [1, 3, 8, 8]
CALLS = [
    Call("Add", [[2, 3], [4, 3]], [2, 3]),
    Call("Add", [[2, 3], [4, 3]], [2, 3], {}, {}, FLOAT, 7),
    Call("Sub", [[2, 3], [3]], [2, 3], {"axis": 0, "broadcast": 1}, {}, FLOAT, 6),
    Call("BitShift", [[2, 3], [4]], [2, 3], {"direction": "LEFT"}, {0: U8, 1: U8}, U8),
    Call("Equal", [[2, 3], [4]], [2, 3], {}, {}, BOOL),
    Call("Sum", [[2, 3], [2, 4], [2, 3]], [2, 3]),
    Call("Max", [[2, 3], [2, 4]], [2, 3]),
    Call("PRelu", [[1, 3, 4], [5]], [1, 3, 4]),
    Call("Where", [[2, 3], [2, 3], [4, 3]], [2, 3], {}, {0: BOOL}),
    Call("Clip", [[2, 3], [2], []], [2, 3]),
    Call("MatMul", [[2, 3], [4, 5]], [2, 5]),
    Call("MatMul", [[2, 2, 3], [3, 3, 5]], [2, 2, 5]),
    Call("Gemm", [[2, 3], [4, 5]], [2, 5]),
    Call("Gemm", [[3, 2], [3, 5], [4]], [2, 5], {"transA": 1}),
    Call("Gemm", [[2, 3, 4], [3, 5]], [2, 5]),
    Call("MatMulInteger", [[2, 3], [4, 5]], [2, 5], {}, {0: U8, 1: U8}, I32),
    Call("Einsum", [[2, 3], [4, 5]], [2, 5], {"equation": "ij,jk->ik"}),
    Call("Conv", [IMAGE, [4, 2, 3, 3]], [1, 4, 6, 6]),
    Call("Conv", [IMAGE, [4, 3, 3, 3], [5]], [1, 4, 6, 6]),
    Call("Conv", [IMAGE, [4, 3, 3]], [1, 4, 6, 6]),
    Call("Conv", [IMAGE, [4, 1, 3, 3]], [1, 4, 6, 6], {"group": 3}),
    Call("ConvTranspose", [IMAGE, [2, 4, 3, 3]], [1, 4, 10, 10]),
    Call("ConvTranspose", [IMAGE, [3, 4, 3, 3], [5]], [1, 4, 10, 10]),
    Call("ConvInteger", [IMAGE, [4, 2, 3, 3]], [1, 4, 6, 6], {}, {0: U8, 1: U8}, I32),
    Call("DeformConv", [IMAGE, [4, 2, 3, 3], [1, 18, 6, 6]], [1, 4, 6, 6]),
    Call("MaxPool", [IMAGE], [1, 3, 4, 4], {"kernel_shape": [2]}),
    Call("AveragePool", [[1, 3, 2, 2]], [1, 3, 1, 1], {"kernel_shape": [5, 5]}),
    Call("GlobalAveragePool", [[3]], [3]),
    Call("MaxUnpool", [[1, 1, 2, 2], [1, 1, 3, 3]], [1, 1, 4, 4], {"kernel_shape": [2, 2], "strides": [2, 2]},
         {1: INT64}),
    Call("BatchNormalization", [[1, 3, 4], [4], [4], [4], [4]], [1, 3, 4]),
    Call("BatchNormalization", [[1, 3, 4], [3], [3], [4], [3]], [1, 3, 4], {}, {}, FLOAT, 9),
    Call("InstanceNormalization", [[1, 3, 4], [4], [4]], [1, 3, 4]),
    Call("LayerNormalization", [[1, 3, 4], [4], [5]], [1, 3, 4]),
    Call("RMSNormalization", [[1, 3, 4], [5]], [1, 3, 4], {}, {}, FLOAT, 23),
    Call("GroupNormalization", [[1, 4, 4], [5], [5]], [1, 4, 4], {"num_groups": 2}),
    Call("LRN", [[3]], [3], {"size": 3}),
    Call("Softmax", [[2, 3]], [2, 3], {"axis": 4}),
    Call("Concat", [[2, 3], [4, 5]], [2, 8], {"axis": 1}),
    Call("Concat", [[2, 3], [2, 3, 4]], [2, 8], {"axis": 1}),
    Call("Reshape", [[2, 3], constant(4, 2)], [4, 2]),
    Call("Expand", [[2, 3], constant(4, 3)], [4, 3]),
    Call("Tile", [[2, 3], constant(2, 1, 1)], [4, 3]),
    Call("Transpose", [[2, 3]], [3, 2], {"perm": [0, 1, 2]}),
    Call("Squeeze", [[2, 3], constant(0)], [3]),
    Call("Unsqueeze", [[2, 3], constant(5)], [1, 2, 3]),
    Call("Flatten", [[2, 3]], [2, 3], {"axis": 5}),
    Call("Slice", [[2, 3], constant(0), constant(1), constant(4)], [2, 3]),
    Call("Pad", [[2, 3], constant(1, 1, 1)], [3, 4]),
    Call("Split", [[2, 3], constant(2)], [2, 2], {"axis": 1}),
    Call("Trilu", [[3]], [3]),
    Call("Resize", [[1, 3, 4, 4], None, np.array([2, 2], np.float32)], [1, 3, 8, 8]),
    Call("DepthToSpace", [[1, 3, 2, 2]], [1, 1, 4, 4], {"blocksize": 2}),
    Call("SpaceToDepth", [[1, 3, 3, 3]], [1, 12, 1, 1], {"blocksize": 2}),
    Call("CenterCropPad", [[2, 3], constant(4, 4, 4)], [4, 4]),
    Call("Gather", [[2, 3], [4]], [4, 3], {"axis": 3}, {1: INT64}),
    Call("GatherElements", [[2, 3], [2, 4]], [2, 4], {"axis": 0}, {1: INT64}),
    Call("GatherND", [[2, 3], [4, 5]], [4], {}, {1: INT64}),
    Call("ScatterElements", [[2, 3], [1, 3], [2, 3]], [2, 3], {}, {1: INT64}),
    Call("ScatterND", [[2, 3], [1, 1], [1, 4]], [2, 3], {}, {1: INT64}),
    Call("Compress", [[2, 3], [5, 2]], [2], {}, {1: BOOL}),
    Call("OneHot", [[2], [], [3]], [2, 4], {}, {0: INT64, 1: INT64}),
    Call("ReduceSum", [[2, 3], constant(5)], [2, 1]),
    Call("ArgMax", [[2, 3]], [2, 1], {"axis": 5}, {}, INT64),
    Call("CumSum", [[2, 3], constant(4)], [2, 3]),
    Call("ReverseSequence", [[2, 3], [5]], [2, 3], {}, {1: INT64}),
    Call("NonMaxSuppression", [[1, 4, 4], [1, 1, 5]], [2, 3], {}, {}, INT64),
    Call("RNN", [[5, 1, 3], [1, 4, 4], [1, 4, 4]], [5, 1, 1, 4], {"hidden_size": 4}),
    Call("GRU", [[5, 1, 3], [1, 12, 3], [1, 12, 4], [1, 12]], [5, 1, 1, 4], {"hidden_size": 4}),
    Call("LSTM", [[5, 1, 3], [1, 16, 3], [1, 16, 5]], [5, 1, 1, 4], {"hidden_size": 4}),
    Call("LSTM", [[5, 2, 3], [1, 16, 3], [1, 16, 4], None, None, [1, 1, 4]], [5, 1, 2, 4], {"hidden_size": 4}),
    Call("LSTM", [[5, 1, 3], [1, 16, 3], [1, 16, 4]], [5, 2, 1, 4], {"hidden_size": 4, "direction": "bidirectional"}),
    Call("QuantizeLinear", [[2, 3], [4]], [2, 3], {"axis": 1}, {}, U8),
    Call("DequantizeLinear", [[2, 3], [2, 2]], [2, 3], {"axis": 1, "block_size": 3}, {0: U8}),
    Call("Attention", [[1, 2, 4, 8], [1, 2, 4, 6], [1, 2, 4, 8]], [1, 2, 4, 8], {}, {}, FLOAT, 23),
    Call("Attention", [[1, 4, 4, 8], [1, 3, 4, 8], [1, 3, 4, 8]], [1, 4, 4, 8], {}, {}, FLOAT, 23),
    Call("RotaryEmbedding", [[1, 2, 4, 8], [6, 3], [6, 4]], [1, 2, 4, 8], {}, {}, FLOAT, 23),
    Call("GridSample", [[1, 3, 4, 4], [2, 4, 4, 2]], [1, 3, 4, 4]),
    Call("RoiAlign", [[1, 3, 4, 4], [2, 4], [3]], [2, 3, 1, 1], {}, {2: INT64}),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.op_type}{call.inputs}"[:60])
def test_a_contradiction_is_refused_whatever_is_declared(call: Call) -> None:
    for declared in (call.output, None, ["a"] * len(call.output)):
        assert_refused(model_of(call, declared))


DIMS = st.lists(st.integers(2, 5), min_size=1, max_size=3)


@given(a=DIMS, b=DIMS, op_type=st.sampled_from(["Add", "Mul", "Min", "Pow", "Less", "Where"]), data=st.data())
@settings(deadline=None, max_examples=60)
def test_shapes_broadcast_or_are_refused(a: list[int], b: list[int], op_type: str, data: st.DataObject) -> None:
    """Numpy is the judge of what broadcasts; a wrong declaration changes nothing."""
    declared = data.draw(st.one_of(st.just(a), st.just(b), DIMS))
    inputs = [[1], a, b] if op_type == "Where" else [a, b]
    call = Call(op_type, inputs, a, {}, {0: BOOL} if op_type == "Where" else {}, BOOL if op_type == "Less" else FLOAT)
    try:
        expected = np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError:
        assert_refused(model_of(call, declared))
        return
    found = read_model(model_of(call, declared)).result("y").type
    assert isinstance(found, TensorType)
    assert found.shape == PartialShape(expected)


@given(a=DIMS, b=DIMS, trans=st.booleans())
@settings(deadline=None, max_examples=60)
def test_products_fit_or_are_refused(a: list[int], b: list[int], trans: bool) -> None:
    is_gemm = len(a) == len(b) == 2
    call = Call("Gemm", [a, b], [], {"transB": int(trans)}) if is_gemm else Call("MatMul", [a, b], [])
    left, right = np.ones(a), np.ones(b)
    try:
        expected = np.matmul(left, right.T if is_gemm and trans else right).shape
    except ValueError:
        assert_refused(model_of(call, [*a[:-1], b[-1]]))
        return
    found = read_model(model_of(call, [*a[:-1], b[-1]])).result("y").type
    assert isinstance(found, TensorType)
    assert found.shape == PartialShape(expected)


# -- where a contradiction can hide -----------------------------------------------------------------------


def graph_model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], *, opset: int = 21, **more: Any
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, [value("y", [2, 3])])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


X, Z = value("x", [2, 3]), value("z", [4, 3])
CULPRIT = helper.make_node("Add", ["x", "z"], ["t"], name="culprit")


def loop(given: onnx.ValueInfoProto, state: Sequence[int] | None, other: onnx.ValueInfoProto) -> onnx.ModelProto:
    """A loop whose state starts as `given`, is declared as `state`, and to which `other` is added."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "z"], ["t"], name="culprit")],
        "body",
        [value("i", [], INT64), value("c", [], BOOL), value("v", state)],
        [value("d", [], BOOL), value("t", state)],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], name="loop", body=body)
    return graph_model([node], [value("n", [], INT64), given, other])


@pytest.mark.parametrize("declared", [[2, 3], None])
@pytest.mark.parametrize("opset", [11, 21])
def test_a_contradiction_in_a_branch(declared: Sequence[int] | None, opset: int) -> None:
    then = helper.make_graph([CULPRIT], "then", [], [value("t", declared)])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "else", [], [value("e", [2, 3])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    assert_refused(graph_model([node], [value("c", [], BOOL), X, Z], opset=opset))


def test_a_contradiction_of_an_operator_that_onnx_infers_in_a_branch() -> None:
    squeeze = helper.make_node("Tile", ["x", "x"], ["t"], name="culprit")
    then = helper.make_graph([squeeze], "then", [], [value("t", [2, 3])])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "else", [], [value("e", [2, 3])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    assert_refused(graph_model([node], [value("c", [], BOOL), X]))


@pytest.mark.parametrize("state", [[2, 3], [4, 3], None])
def test_a_contradiction_in_a_loop_that_its_own_declarations_hide(state: Sequence[int] | None) -> None:
    assert_refused(loop(X, state, Z))
    assert read_model(loop(X, state if state == [2, 3] else None, value("z", [2, 3]))).result("y").type == TensorType(
        f32, PartialShape([2, 3])
    )


def test_a_contradiction_in_a_scan() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"], name="culprit"), helper.make_node("Identity", ["t"], ["u"])],
        "body",
        [value("s", [2]), value("e", [4])],
        [value("t", [2]), value("u", [2])],
    )
    node = helper.make_node("Scan", ["s0", "e0"], ["s1", "y"], body=body, num_scan_inputs=1)
    assert_refused(graph_model([node], [value("s0", [2]), value("e0", [2, 4])]))


@pytest.mark.parametrize("opset", [12, 21])
def test_a_contradiction_in_a_local_function(opset: int) -> None:
    culprit = helper.make_node("Add", ["x", "z"], ["t"], name="culprit")
    function = helper.make_function("local", "F", ["x", "z"], ["t"], [culprit], [helper.make_opsetid("", opset)])
    call = helper.make_node("F", ["x", "z"], ["y"], domain="local")
    assert_refused(graph_model([call], [X, Z], functions=[function]))


def test_a_contradiction_behind_a_value_that_only_its_declaration_types() -> None:
    own = helper.make_node("Own", ["x"], ["o"], domain="local")
    proto = graph_model([own, helper.make_node("Add", ["o", "z"], ["y"], name="culprit")], [X, Z])
    proto.graph.value_info.append(value("o", [2, 3]))
    assert_refused(proto)


def test_a_contradiction_that_an_edit_makes() -> None:
    x, z = ops.Parameter(TensorType(f32, PartialShape([2, 3]))), ops.Parameter(TensorType(f32, PartialShape([4, 3])))
    with pytest.raises(TypeInferenceError, match="Add"):
        ops.Add(x, z)
    steps = ops.Parameter(TensorType(f32, PartialShape([5, 1, 3])))
    w, r = (ops.Constant(np.zeros(shape, np.float32)) for shape in ([1, 16, 3], [1, 16, 5]))
    with pytest.raises(TypeInferenceError, match="LSTM"):
        ops.LSTM(steps, w, r, hidden_size=4)
    total = ops.Add(x, x, friendly_name="culprit")
    model = Model([total], [x, z])
    total.input(1).replace_source_output(z)
    with pytest.raises(TypeInferenceError, match="culprit"):
        model.validate()


# -- no contradictions ----------------------------------------------------------------------------------


def test_an_output_that_is_declared_wrongly_loads_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "engine.onnx")
    model = read_model(model_of(Call("MatMul", [[2, 3], [3, 5]], []), [7, 5]))
    assert model.result("y").type == TensorType(f32, PartialShape([2, 5]))
    (record,) = caplog.records
    assert record.getMessage() == "output `y` is declared as f32[7,5], but computed as f32[2,5]"
    caplog.clear()
    for declared in ([2, 5], ["n", 5], None):
        read_model(model_of(Call("MatMul", [[2, 3], [3, 5]], []), declared))
    assert not caplog.records


def test_what_is_open_may_still_fit() -> None:
    read_model(model_of(Call("MatMul", [["n", "k"], ["m", 5]], []), ["n", 5]))
    read_model(model_of(Call("LSTM", [["s", "b", 3], ["d", 16, 3], [1, "g", 4]], [], {"hidden_size": 4}), None))
    read_model(model_of(Call("LayerNormalization", [["b", "n"], ["k"], [1]], []), None))
    indices = Call("ScatterND", [["a", 3], ["k", 1], ["u", 3]], [], {}, {1: INT64})
    assert read_model(model_of(indices, None)).parameter("x1").type == TensorType(i64, PartialShape(["k", 1]))


def test_lengths_of_the_traced_example_do_not_bind_outputs_of_an_open_model() -> None:
    """LightGBM's classifier by onnxmltools states one label, whatever the number of rows."""
    text = """
    <ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
    main (float[rows, 2] x) => (int64[1] label) {
       label, scores = ai.onnx.ml.LinearClassifier <coefficients = [1.0, -1.0, 0.5, 1.0], intercepts = [0.0, 0.1],
                                                    classlabels_ints = [3, 5]> (x)
    }
    """
    model = onnx.parser.parse_model(text)
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert expected.shape == (6,)
    network = Core().compile_model(model, "CPU")
    assert np.array_equal(network.create_infer_request().infer({"x": x})["label"], expected)


@pytest.mark.parametrize(
    "device", ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE", pytest.param("OPENCL", marks=pytest.mark.opencl)]
)
@pytest.mark.parametrize(("op_type", "shape", "declared"), [("Expand", [1, 6], [6, 1]), ("Reshape", [3, 2], [2, 3])])
def test_a_declared_shape_does_not_replace_the_one_that_is_computed(
    op_type: str, shape: list[int], declared: list[int], device: str
) -> None:
    """The values decide: the results have their shape, or there is an error, never the shape of the declaration."""
    node = helper.make_node(op_type, ["x", "shape"], ["y"], name="culprit")
    inputs = [value("x", [6] if op_type == "Reshape" else [1, 1]), value("shape", [2], INT64)]
    graph = helper.make_graph([node], "g", inputs, [value("y", declared)])
    written = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    network = Core().compile_model(written, device)
    x = np.arange(6, dtype=np.float32) if op_type == "Reshape" else np.ones((1, 1), np.float32)
    with pytest.raises(EngineError, match=r"culprit.*declares for output `y`.*: shape is"):
        network({"x": x, "shape": np.array(shape)})
    assert network({"x": x, "shape": np.array(declared)})["y"].shape == tuple(declared)
