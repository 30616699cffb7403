"""Sound containers around forged contents: whatever TEMPLATE is given to import, a user gets an `EngineError`.

The container's hashes are right here, as a forger can make them, so that only the payload's own checks are left.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Core, EngineError, ops
from engine.blob import BlobReader, BlobWriter
from engine.errors import ModelWriteError
from engine.ir import Constant, Model, Parameter, Result, boolean, f32, i64
from engine.onnx import split_model

X = {"x": np.ones((3, 8), np.float32), "c": np.array(True)}


def make_model() -> Model:
    """With all parts of payloads: a section of weights, text, a body that captures, a sequence, a symbol."""
    x, c = Parameter(f32, ["N", 8], "x"), Parameter(boolean, [], "c")
    hidden = ops.Relu(ops.MatMul(x, Constant(np.ones((8, 64), np.float32))))
    captured = [Parameter(f32, ["N", 64], name) for name in ("a", "b")]
    branches = [Model([Result(op(p), "r")], captures=[p]) for op, p in zip((ops.Relu, ops.Neg), captured, strict=True)]
    chosen = ops.If(c, hidden, hidden, then_branch=branches[0], else_branch=branches[1])
    parts = ops.Split(chosen, num_outputs=2, axis=1)
    half = ops.SequenceAt(ops.SequenceConstruct(parts.output(0), parts.output(1)), Constant(0, i64))
    return Model([Result(half, "y"), Result(ops.Identity(Constant(["t", "u"])), "text")], [x, c])


def export() -> bytes:
    stream = io.BytesIO()
    Core().compile_model(make_model(), "TEMPLATE", {"TEMPLATE_TRANSFORMATIONS": False}).export_model(stream)
    return stream.getvalue()


BLOB = BlobReader(export())
SKELETON = bytes(BLOB.section("graph"))


def forged(skeleton: bytes, without: str = "") -> bytes:
    writer = BlobWriter(BLOB.manifest)
    for name in BLOB.section_names:
        if name != without:
            writer.add_section(name, skeleton if name == "graph" else BLOB.section(name))
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


def edited(edit: Callable[[onnx.ModelProto], object]) -> bytes:
    proto = onnx.ModelProto.FromString(SKELETON)
    edit(proto)
    return forged(proto.SerializeToString())


def node(proto: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    return next(each for each in proto.graph.node if each.op_type == op_type)


def attribute(proto: onnx.ModelProto, op_type: str, name: str) -> onnx.AttributeProto:
    return next(each for each in node(proto, op_type).attribute if each.name == name)


def weights(proto: onnx.ModelProto) -> onnx.TensorProto:
    return next(each for each in proto.graph.initializer if each.external_data)


def test_the_forger_can_make_a_sound_blob() -> None:
    result = Core().import_model(forged(SKELETON), "TEMPLATE")(X)
    assert result["y"].tolist() == np.full((3, 32), 8.0).tolist()


FORGERIES: dict[str, Callable[[onnx.ModelProto], object]] = {
    "a trillion outputs": lambda m: setattr(attribute(m, "Split", "num_outputs"), "i", 2**40),
    "a body is missing": lambda m: node(m, "If").attribute.pop(),
    "another operator": lambda m: setattr(node(m, "If"), "op_type", "Loop"),
    "an operator that is none": lambda m: setattr(node(m, "MatMul"), "op_type", "Nothing"),
    "a cycle": lambda m: node(m, "MatMul").input.__setitem__(0, node(m, "Relu").output[0]),
    "an input that is none": lambda m: node(m, "Relu").input.__setitem__(0, "nowhere"),
    "no inputs": lambda m: node(m, "MatMul").ClearField("input"),
    "a section that is not there": lambda m: setattr(weights(m).external_data[0], "value", "9"),
    "a file of the host": lambda m: setattr(weights(m).external_data[0], "key", "location"),
    "more weights than the section has": lambda m: weights(m).dims.__setitem__(0, 2**40),
    "fewer than none": lambda m: weights(m).dims.__setitem__(0, -8),
    "an element type that is none": lambda m: setattr(weights(m), "data_type", 99),
    "text as weights": lambda m: setattr(weights(m), "data_type", onnx.TensorProto.STRING),
    "two inputs of a name": lambda m: setattr(m.graph.input[1], "name", "x"),
    "no outputs of the manifest": lambda m: m.graph.ClearField("output"),
    "no graph": lambda m: m.ClearField("graph"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_graph_is_an_error(forgery: str) -> None:
    # Inputs and outputs that contradict the manifest may show only when it runs.
    with pytest.raises(EngineError):
        Core().import_model(edited(FORGERIES[forgery]), "TEMPLATE")(X)


def test_missing_weights_are_an_error() -> None:
    (name,) = [each for each in BLOB.section_names if each.startswith("weights/")]
    with pytest.raises(EngineError, match="no section"):
        Core().import_model(forged(SKELETON, without=name), "TEMPLATE")


def test_a_name_of_thousands_of_digits_is_no_number() -> None:
    def edit(proto: onnx.ModelProto) -> None:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "1" * 5000

    assert Core().import_model(edited(edit), "TEMPLATE")(X)["y"].shape == (3, 32)


def test_bodies_nested_too_deep_for_a_file_are_an_error() -> None:
    body = Model([Result(ops.Relu(inner := Parameter(f32, [2], "x")), "r")], captures=[inner])
    for _ in range(40):
        c, p, q = Parameter(boolean, [], "c"), Parameter(f32, [2], "p"), Parameter(f32, [2], "q")
        other = Model([Result(ops.Neg(q), "r")], captures=[q])
        outer = [c if capture.type == c.type else p for capture in body.captures]
        chosen = ops.create("If", [c, *outer, p], {"then_branch": body, "else_branch": other})
        body = Model([Result(chosen, "r")], captures=[p, c])
    model = Model(body.results, body.captures)
    with pytest.raises(ModelWriteError, match="nested too deep"):
        split_model(model)


changes = st.lists(
    st.tuples(st.integers(0, len(SKELETON) - 1), st.sampled_from(["set", "cut", "repeat"]), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


@given(changes)
@settings(max_examples=200, deadline=None)
def test_any_damage_to_the_graph_is_an_error_or_harmless(changes: list[tuple[int, str, int]]) -> None:
    data = bytearray(SKELETON)
    for position, how, value in changes:
        if how == "set":
            data[position : position + 1] = bytes([value])
        elif how == "cut":
            del data[position : position + value % 20]
        else:
            data[position:position] = data[position : position + value % 40]
    with contextlib.suppress(EngineError):
        network = Core().import_model(forged(bytes(data)), "TEMPLATE")
        network({port.name: X[port.name] for port in network.inputs if port.name in X})
