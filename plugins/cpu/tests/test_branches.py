"""No model is refused for a branch that is never taken, and the rest of the If runs natively."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.typing import NDArray

from engine import Core
from engine.errors import InputError

Array = NDArray[Any]

_CHOICE = """
    {p}shape = Shape({x})
    {p}length = Gather({p}shape, two)
    {p}is_one = Equal({p}length, one)
    {y} = If ({p}is_one) <
        then_branch: graph = {p}then () => (float[] {p}t) {{ {p}axes = Constant <value_ints: ints = [2]> ()
                                                                {p}t = Squeeze({x}, {p}axes) }},
        else_branch: graph = {p}else () => (float[] {p}e) {{ {p}e = Identity({x}) }}>
"""
"""`squeeze(dim=2)` as PyTorch's exporters write it: a Squeeze, or nothing."""


def choice(x: str, y: str, prefix: str = "") -> str:
    return _CHOICE.format(x=x, y=y, p=prefix)


def model(nodes: str, inputs: str = "float[a, b, n] x") -> bytes:
    """Of inputs `inputs` and output y; the nodes may read the constants `one` and `two`."""
    text = f"""
    <ir_version: 8, opset_import: ["": 16]>
    main ({inputs}) => (float[] y) {{
        one = Constant <value: tensor = int64 {{1}}> ()
        two = Constant <value: tensor = int64 {{2}}> ()
        {nodes}
    }}"""
    proto = onnx.parser.parse_model(text)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    made: bytes = proto.SerializeToString()
    return made


def nested(inner: str, y: str = "y", p: str = "o") -> str:
    """In the branch of an If whose condition is an input: `inner` computes w."""
    return f"""{y} = If (c) <then_branch: graph = {p}then () => (float[] {p}t) {{ {p}t = Neg(z) }},
                         else_branch: graph = {p}else () => (float[] w) {{ {inner} }}>"""


MODELS = {
    "alone": model("z = Relu(x)" + choice("z", "w") + "y = Mul(w, w)"),
    "nested": model("z = Relu(x)" + nested(choice("z", "v") + "w = Mul(v, v)"), "float[a, b, n] x, bool c"),
    "nested twice": model(
        "z = Relu(x)" + nested(nested(choice("z", "v") + "w = Mul(v, v)", "w2", "i") + "w = Abs(w2)"),
        "float[a, b, n] x, bool c",
    ),
    "one after another": model("z = Relu(x)" + choice("z", "v", "f") + choice("v", "w", "g") + "y = Mul(w, w)"),
}


def feeds(data: bytes, shape: tuple[int, ...], condition: bool = False) -> dict[str, Array]:
    given: dict[str, Array] = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    if len(onnx.ModelProto.FromString(data).graph.input) > 1:
        given["c"] = np.array(condition)
    return given


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU"])
@pytest.mark.parametrize("name", MODELS)
def test_shapes_that_do_not_fit_the_branch_that_is_not_taken(name: str, device: str) -> None:
    peer = onnxruntime.InferenceSession(MODELS[name], providers=["CPUExecutionProvider"])
    network = Core().compile_model(MODELS[name], device)
    shapes = [(1, 3, 2), (2, 3, 4), (3, 1, 2)] + [(1, 3, 1)] * (name != "one after another")
    for shape in shapes:
        for condition in (True, False):
            given = feeds(MODELS[name], shape, condition)
            (expected,) = peer.run(None, given)
            result = network(given)[0]
            assert result.shape == expected.shape
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", MODELS)
def test_no_node_is_left_to_the_evaluation(name: str) -> None:
    network = Core().compile_model(MODELS[name], "CPU", {"PERF_COUNT": True})
    request = network.create_infer_request()
    request.infer(feeds(MODELS[name], (1, 3, 2)))
    assert {each.status for each in request.profiling_info.nodes} <= {"native"}


@pytest.mark.parametrize("name", MODELS)
def test_shapes_that_are_known_before(name: str) -> None:
    """The model is changed to known lengths, exported and imported."""
    core = Core()
    changed = core.read_model(MODELS[name])
    given = feeds(MODELS[name], (1, 3, 2))
    expected = core.compile_model(MODELS[name], "TEMPLATE")(given)[0]
    changed.reshape({"x": [1, 3, 2]})
    network = core.compile_model(changed, "CPU")
    assert network.get_property("REFERENCE_STEPS") == ()
    blob = io.BytesIO()
    network.export_model(blob)
    for each in (network, core.import_model(blob.getvalue(), "CPU")):
        np.testing.assert_array_equal(each(given)[0], expected)


def test_a_file_of_known_shapes_that_the_other_branch_does_not_fit() -> None:
    for name in ("alone", "nested"):
        proto = onnx.ModelProto.FromString(MODELS[name])
        for dim, length in zip(proto.graph.input[0].type.tensor_type.shape.dim, (1, 3, 2), strict=True):
            dim.dim_value = length
        given = feeds(MODELS[name], (1, 3, 2))
        for device in ("TEMPLATE", "CPU"):
            found = Core().compile_model(proto, device)(given)[0]
            np.testing.assert_array_equal(found, Core().compile_model(MODELS[name], device)(given)[0])


def test_a_branch_by_a_condition_at_run_time_is_an_error_if_it_is_taken() -> None:
    """As in a detector of speech for two rates, each with its own length of windows."""
    data = model(
        """weights = Constant <value_floats: floats = [1.0, 2.0, 3.0]> ()
           y = If (c) <then_branch: graph = a () => (float[] t) { t = MatMul(x, weights) },
                       else_branch: graph = b () => (float[] e) { s = Relu(x)
                                                                     e = Mul(s, s) }>""",
        "float[a, b, n] x, bool c",
    )
    for device in ("TEMPLATE", "CPU"):
        network = Core().compile_model(data, device)
        given = feeds(data, (1, 3, 2))
        np.testing.assert_array_equal(network(given)[0], np.square(np.maximum(given["x"], 0)))
        with pytest.raises(InputError, match="MatMul"):
            network(given | {"c": np.array(True)})
        assert network(feeds(data, (1, 2, 3), True))[0].shape == (1, 2)
