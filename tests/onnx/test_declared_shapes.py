"""Shapes that a file declares and inference does not prove never decide a result."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

from engine import Core
from engine.errors import DeclarationError, EngineError, InputError, UnsupportedError
from engine.ir import PartialShape, TensorType, f32
from engine.onnx import read_model
from engine.onnx.graph_inference import infer_graph

DEVICES = (
    "TEMPLATE",
    "CPU",
    "HETERO:CPU,TEMPLATE",
    "AUTO:CPU,TEMPLATE",
    pytest.param("HETERO:OPENCL,CPU", marks=pytest.mark.opencl),
)
HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'
ROW = np.array([[-1.0, 2.0, -3.0, 4.0]], np.float32)
GRID = np.arange(12, dtype=np.float32).reshape(3, 4)
TRUE = np.array(True)

CALLS: dict[str, tuple[str, str, dict[str, Any], list[int]]] = {
    # inputs of the graph; nodes that compute `w`; their values; a shape that `w` does not have
    "Reshape": ("float[1,4] x, int64[2] s", "w = Reshape(x, s)", {"s": [4, 1]}, [1, 4]),
    "Reshape to the shape of another value": (
        "float[N,M] x",
        "a = Abs(x) f = Constant<value = int64[1] {-1}>() q = Reshape(a, f) s = Shape(x) w = Reshape(q, s)",
        {"x": GRID},
        [2, 6],
    ),
    "Expand": ("float[1,4] x, int64[2] s", "w = Expand(x, s)", {"s": [3, 4]}, [1, 4]),
    "Squeeze": ("float[1,4,1] x, int64[1] s", "w = Squeeze(x, s)", {"x": ROW.reshape(1, 4, 1), "s": [0]}, [1, 4]),
    "Unsqueeze": ("float[4] x, int64[1] s", "w = Unsqueeze(x, s)", {"x": ROW[0], "s": [1]}, [1, 4]),
    "Tile": ("float[1,4] x, int64[2] s", "w = Tile(x, s)", {"s": [2, 1]}, [1, 4]),
    "Slice": (
        "float[1,4] x, int64[1] s",
        "a = Constant<value = int64[1] {0}>() b = Constant<value = int64[1] {1}>() w = Slice(x, a, s, b)",
        {"s": [2]},
        [1, 4],
    ),
    "Pad": ("float[1,4] x, int64[4] s", "w = Pad(x, s)", {"s": [0, 1, 0, 0]}, [1, 4]),
    "Resize": (
        "float[1,4] x, int64[2] s",
        'w = Resize<mode = "nearest">(x, , , s)',
        {"s": [1, 2]},
        [1, 4],
    ),
    "ConstantOfShape": ("int64[2] s", "w = ConstantOfShape<value = float[1] {2}>(s)", {"s": [4, 1]}, [1, 4]),
    "Range": (
        "float x, float s",
        "a = Constant<value = float {1}>() r = Range(x, s, a) b = Constant<value = int64[1] {0}>() w = Unsqueeze(r, b)",
        {"x": np.float32(0), "s": np.float32(3)},
        [1, 4],
    ),
    "NonZero": ("float[1,4] x", "n = NonZero(x) w = Cast<to = 1>(n)", {"x": np.eye(1, 4, dtype=np.float32)}, [2, 4]),
    "TopK": ("float[1,4] x, int64[1] s", "w, i = TopK(x, s)", {"s": [3]}, [1, 4]),
    "Compress": (
        "float[1,4] x, bool[4] s",
        "w = Compress<axis = 1>(x, s)",
        {"s": np.array([True, False, True, True])},
        [1, 4],
    ),
    "OneHot": (
        "int64[1] x, int64 s",
        "v = Constant<value = float[2] {0, 1}>() w = OneHot(x, s, v)",
        {"x": [1], "s": 3},
        [1, 4],
    ),
    "ReduceSum": ("float[3,4] x, int64[1] s", "w = ReduceSum(x, s)", {"x": GRID, "s": [1]}, [1, 4]),
    "Split": (
        "float[1,4] x, int64[2] s",
        "w, v = Split<axis = 1>(x, s)",
        {"s": [3, 1]},
        [1, 2],
    ),
    "If": (
        "float[1,4] x, bool s",
        "w = If(s) <then_branch = t () => (float[P,Q] a) { a = Abs(x) },"
        " else_branch = e () => (float[P,Q] b) { b = Transpose(x) }>",
        {"s": np.array(False)},
        [1, 4],
    ),
    "Loop": (
        "float[1,4] x, int64 s",
        "t = Constant<value = bool {1}>() w = Loop(s, t, x) <body = bd (int64 i, bool ci, float[P,Q] v) =>"
        " (bool co, float[P,Q] vo) { co = Identity(ci) vo = Transpose(v) }>",
        {"s": 1},
        [1, 4],
    ),
    "Scan": (
        "float[A,4] x",
        "w = Scan<num_scan_inputs = 1, body = bd (float[4] v) => (float[4] o) { o = Neg(v) }>(x)",
        {"x": GRID},
        [1, 4],
    ),
    "an operator that reads such a value": (
        "float[1,4] x, int64[2] s",
        "v = Reshape(x, s) w = Relu(v)",
        {"s": [4, 1]},
        [1, 4],
    ),
}


def declared(call: str, *, is_output: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """A model that declares a wrong shape of `w`, and its inputs."""
    inputs, nodes, given, shape = CALLS[call]
    outputs = f"float[{shape[0]},{shape[1]}] w" if is_output else "float[A,B] z"
    last = "" if is_output else "z = Softmax<axis = 1>(w)"
    model = parser.parse_model(f"{HEADER} g ({inputs}) => ({outputs}) {{ {nodes} {last} }}")
    if not is_output:
        model.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, shape))
    values = {"x": ROW, **given}
    return model, {value.name: np.asarray(values[value.name]) for value in model.graph.input}


def reference(model: onnx.ModelProto, inputs: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    (result,) = session.run(None, inputs)
    return np.asarray(result)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_value_info_does_not_change_a_result(call: str, device: str) -> None:
    model, inputs = declared(call)
    result = Core().compile_model(model, device)(inputs)["z"]
    model.graph.ClearField("value_info")
    wanted = reference(model, inputs)
    assert result.shape == wanted.shape
    np.testing.assert_allclose(result, wanted, rtol=1e-6)


OPEN: dict[str, tuple[str, list[int]]] = {
    # nodes that compute `w` of x: [A, B], and s
    "Reshape": ("w = Reshape(x, s)", [4, 1]),
    "Reshape to swapped lengths": (
        "a = Shape<end = 1>(x) b = Shape<start = 1>(x) t = Concat<axis = 0>(b, a) w = Reshape(x, t)",
        [0, 0],
    ),
    "Transpose": ("w = Transpose(x)", [0, 0]),
    "Expand": ("r = Transpose(x) w = Expand(r, s)", [1, 1]),
    "Tile": ("r = Transpose(x) w = Tile(r, s)", [1, 1]),
    "a reader of such a value": ("v = Reshape(x, s) w = Abs(v)", [4, 1]),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [["A", "B"], ["A", 4]], ids=str)
@pytest.mark.parametrize("call", OPEN)
def test_a_wrong_value_info_with_symbols_does_not_change_a_result(
    call: str, shape: list[str | int], device: str
) -> None:
    """The file states the shape of x for `w`, to which a Reshape of `w` would do nothing."""
    nodes, s = OPEN[call]
    model = parser.parse_model(
        f"{HEADER} g (float[A,B] x, int64[2] s) => (float[C,D] z, float[E,F] y)"
        f" {{ {nodes} z = Softmax<axis = 1>(w) q = Shape(x) y = Reshape(w, q) }}"
    )
    model.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, shape))
    inputs = {"x": ROW, "s": np.array(s)}
    found = Core().compile_model(model, device)(inputs)
    model.graph.ClearField("value_info")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, wanted in zip("zy", session.run(None, inputs), strict=True):
        assert found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", [call for call in CALLS if "N,M" not in CALLS[call][0] and call != "Scan"])
def test_an_output_that_is_declared_wrongly_is_an_error(call: str, device: str) -> None:
    """With an input of unknown length, the lengths that a file states for outputs are ignored."""
    model, inputs = declared(call, is_output=True)
    network = Core().compile_model(model, device)
    assert network.outputs[0].shape == PartialShape(CALLS[call][3])
    with pytest.raises(DeclarationError, match="gives another shape than the model declares for output `w`"):
        network(inputs)


@pytest.mark.parametrize("device", DEVICES)
def test_a_shape_that_does_not_fit_is_refused_though_the_declared_one_fits(device: str) -> None:
    model, inputs = declared("Reshape")
    with pytest.raises(InputError, match=r"Reshape `w`.*\[7, 9\]"):
        Core().compile_model(model, device)({**inputs, "s": np.array([7, 9])})


@pytest.mark.parametrize("device", DEVICES)
def test_a_branch_of_another_rank_than_its_output_is_declared(device: str) -> None:
    model = parser.parse_model(
        HEADER + "g (float[1,4] x, bool c) => (float y, float z) { y = If(c) <then_branch = t () => (a)"
        " { a = ReduceSum<keepdims = 0>(x) }, else_branch = e () => (b) { b = Neg(x) }> z = Mul(y, y) }"
    )
    network = Core().compile_model(model, device)
    with pytest.raises(DeclarationError, match=r"If `y` gives another shape than the model declares for output `y`"):
        network({"x": ROW, "c": np.array(False)})
    assert network({"x": ROW, "c": TRUE})["z"] == 4.0


@pytest.mark.parametrize("device", DEVICES)
def test_more_positions_than_a_table_has_are_an_error(device: str) -> None:
    """The first rows of a table, as many as x has, are taken to be as long as x, which a longer x refutes."""
    model = parser.parse_model(
        HEADER + "g (float[N,S,2] x, float[1,4,2] t) => (float[A,B,C] y, float[D,E,F] z)"
        " { a = Constant<value = int64[1] {0}>() b = Constant<value = int64[1] {1}>() n = Shape<start = 1, end = 2>(x)"
        " f = Slice(t, a, n, b) y = Add(x, f) s = Shape(x) e = Expand(f, s) z = Mul(e, x) }"
    )
    network = Core().compile_model(model, device)
    table = np.arange(8, dtype=np.float32).reshape(1, 4, 2)
    for length in (0, 1, 2, 3, 4, 5, 6, 4):
        x = np.ones((2, length, 2), np.float32)
        if length > 4:
            with pytest.raises(InputError):
                network({"x": x, "t": table})
            continue
        found = network({"x": x, "t": table})
        np.testing.assert_array_equal(found["y"], x + table[:, :length])
        np.testing.assert_array_equal(found["z"], x * table[:, :length])


def test_the_types_of_a_model_do_not_depend_on_its_value_info() -> None:
    """ONNX infers nothing of a Range whose length is computed, or of an Einsum, but everything that is known about
    others.
    """
    model = parser.parse_model(
        HEADER + "g (float[N,8] x, float[8,M] u) => (float[A,B] z, int64[C] r)"
        ' { y = Relu(x) m = Einsum<equation = "ij,jk->ik">(y, u) z = Neg(m) s = Shape<start = 0, end = 1>(y)'
        " a = Constant<value = int64 {0}>() b = Constant<value = int64 {1}>() e = Squeeze(s) r = Range(a, e, b) }"
    )
    types = {name: str(read_model(model).node(name).output(0).type) for name in "ymzsr"}
    assert types == {"y": "f32[N,8]", "m": "f32[N,M]", "z": "f32[N,M]", "s": "i64[1]", "r": "i64[?]"}


def test_a_node_that_onnx_may_not_infer_does_not_stop_the_inference_of_others() -> None:
    model = parser.parse_model(
        HEADER + 'g (float[N,8] x) => (z) { y = Relu(x) m = Einsum<equation = "ij->ji">(x) z = Concat<axis = 1>(y, y) }'
    )
    found = {value.name: value.type.tensor_type.shape.dim for value in infer_graph(model).graph.value_info}
    assert [dim.dim_param or dim.dim_value for dim in found["y"]] == ["N", 8]
    assert "m" not in found
    assert [entry.domain for entry in model.opset_import] == [""]


def test_a_model_that_is_stored_keeps_what_is_proven_and_what_is_declared() -> None:
    model, inputs = declared("Reshape", is_output=True)
    stream = io.BytesIO()
    Core().compile_model(model, "CPU").export_model(stream)
    network = Core().import_model(stream.getvalue(), "CPU")
    assert network.outputs[0].shape == PartialShape([1, 4])
    with pytest.raises(DeclarationError, match="output `w`"):
        network(inputs)
    assert read_model(model).node("w").output(0).shape == PartialShape([None, None])


@pytest.mark.parametrize("call", ["Squeeze", "Loop", "If"])
def test_a_plan_does_not_read_a_value_of_another_shape_than_a_program_states(call: str) -> None:
    """A plan compares only bytes, and both shapes have the same number."""
    proto, inputs = declared(call)
    model = read_model(proto)
    node = model.node("w")
    node.set_output_type(0, TensorType(f32, PartialShape([1, 4])))
    node.settle_types()
    softmax = model.result("z").input_value(0).node
    softmax.set_output_type(0, TensorType(f32, PartialShape([1, 4])))
    softmax.settle_types()
    message = rf"{call} `w` gives float32\[4, 1\], but its declared type is float32\[1, 4\]"
    with pytest.raises(DeclarationError, match=message):
        Core().compile_model(model, "CPU")(inputs)


@pytest.mark.parametrize("width", [4, 5])
def test_a_length_that_an_operator_of_onnxruntime_needs_is_compared_when_it_runs(width: int) -> None:
    """`FusedMatMul` transposes by the rank that the file states of a value."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
        " g (float[1,4] x, int64[K] s) => (float[A,B] z)"
        " { w = Reshape(x, s) z = com.microsoft.FusedMatMul<transA = 1>(w, x) }"
    )
    with pytest.raises(UnsupportedError, match="rank of input 0"):
        read_model(model)
    model.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [1, width]))
    for device in ("TEMPLATE", "CPU"):
        network = Core().compile_model(model, device)
        if width == 4:
            np.testing.assert_array_equal(network({"x": ROW, "s": np.array([1, 4])})["z"], ROW.T @ ROW)
        for wrong in ([4, 1], [1, 2, 2], [4]):
            with pytest.raises(EngineError):
                network({"x": ROW, "s": np.array(wrong)})


@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_names_the_stacked_output_whose_shape_changes(device: str) -> None:
    model = parser.parse_model(
        HEADER + "g (float[1,4] x, int64 n) => (float[A,B] y, float[N,C,D] s) { t = Constant<value = bool {1}>()"
        " y, s = Loop(n, t, x) <body = bd (int64 i, bool ci, float[P,Q] v) => (bool co, float[P,Q] vo, float[R,S] so)"
        " { co = Identity(ci) vo = Transpose(v) so = Neg(vo) }> }"
    )
    with pytest.raises(InputError, match=r"Loop `y`, stacked output 0: iteration 1 made the shape \[1, 4\]"):
        Core().compile_model(model, device)({"x": ROW, "n": np.array(2)})
