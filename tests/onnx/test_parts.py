"""A model in the parts of a blob: joining them gives the model that was split, and its weights are used in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.backend.test
import pytest

from engine import ops
from engine.errors import ModelReadError
from engine.ir import (
    UNKNOWN,
    UNREAD_CONSTANTS,
    Constant,
    Dimension,
    Model,
    Node,
    OptionalType,
    Parameter,
    PartialShape,
    Result,
    SequenceType,
    TensorType,
    ValueType,
    f32,
    i64,
)
from engine.onnx import Section, join_model, read_model, split_model

DATA = Path(onnx.backend.test.__file__).parent / "data"
FILES = sorted(path for folder in ("simple", "light") for path in (DATA / folder).glob("**/*.onnx"))


def rejoined(model: Model) -> Model:
    skeleton, sections = split_model(model)
    data = {section.name: section.data for section in sections}
    return join_model(skeleton, data.__getitem__)


def notes(model: Model) -> list[tuple[str, bool, dict[str, Any]]]:
    return [(n.friendly_name, n.has_own_name, dict(n.rt_info)) for n in model.ordered_nodes()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem if path.stem != "model" else path.parent.name)
def test_a_model_joined_is_the_model_split(path: Path) -> None:
    model = read_model(path)
    again = rejoined(model)
    assert again.to_text() == model.to_text()
    assert notes(again) == notes(model)
    # A skeleton is a blob's, which has the values of the file.
    assert again.rt_info == {key: info for key, info in model.rt_info.items() if key != UNREAD_CONSTANTS}
    assert again.metadata == model.metadata


def test_names_types_and_annotations_that_onnx_cannot_state_are_kept() -> None:
    shape: list[Dimension | str | None] = [
        Dimension(1, 8),
        "n",
        Dimension(2, 4, symbol="m"),
        None,
        Dimension(symbol="1..8"),
    ]
    x = Parameter(f32, shape, "x")
    types: list[ValueType] = [UNKNOWN, OptionalType(SequenceType(TensorType(i64, PartialShape([Dimension(3, 9)]))))]
    custom = Node("Split", [x], {"parts": 2}, domain="my", friendly_name="twin", types=types)
    twin = Node("Merge", custom.outputs, domain="my", friendly_name="twin", types=[TensorType(f32, x.output(0).shape)])
    twin.rt_info.update(cost=1.5, tags=["a", {"b": None}], place=object(), affinity="CPU")
    model = Model([Result(twin, "x")], [x], name="m")
    model.rt_info.update(stage=2, hidden={1, 2})
    model.metadata["k"] = "v"
    model.opset_imports["my"] = 3
    x.rt_info["layout"] = "NCHW"
    again = rejoined(model)
    assert [n.friendly_name for n in again.ordered_nodes()] == ["x", "twin", "twin", "x"]
    found = again.results[0].input_value(0).node
    assert found.rt_info == {"cost": 1.5, "tags": ["a", {"b": None}], "affinity": "CPU"}
    assert [output.type for output in found.input_value(0).node.outputs] == [output.type for output in custom.outputs]
    assert again.parameter("x").type == x.type
    assert again.parameter("x").rt_info == {"layout": "NCHW"}
    assert (again.rt_info, again.metadata, again.opset_imports) == ({"stage": 2}, {"k": "v"}, {"my": 3})


def test_large_constants_are_sections_that_are_used_in_place() -> None:
    big = np.arange(3000, dtype=np.float32)
    narrow = (np.arange(5000) % 16 - 8).astype(np.float32).astype(ml_dtypes.int4)
    small = np.arange(4, dtype=np.float32)
    texts = np.array(["text" * 1000], object)
    arrays = {"big": big, "narrow": narrow, "small": small, "texts": texts}
    model = Model([Result(ops.create("Identity", [Constant(a, friendly_name=k)]), k) for k, a in arrays.items()])
    skeleton, sections = split_model(model)
    assert [(s.type, memoryview(s.data).nbytes) for s in sections] == [
        (TensorType(f32, PartialShape([3000])), 12_000),
        (model.node("narrow").output(0).type, 2500),
    ]
    assert np.shares_memory(np.frombuffer(sections[0].data, np.uint8), big)
    assert len(skeleton) < 10_000
    stored = {s.name: np.frombuffer(bytes(s.data), np.uint8) for s in sections}
    again = join_model(skeleton, lambda name: stored[name].data)
    for name, array in arrays.items():
        found = again.node(name)
        assert isinstance(found, Constant)
        np.testing.assert_array_equal(found.data.astype(array.dtype), array)
    found = again.node("big")
    assert isinstance(found, Constant)
    assert np.shares_memory(found.data, stored[sections[0].name])


def test_a_section_unpacks_as_a_tuple() -> None:
    _, sections = split_model(Model([Result(Constant(np.zeros(1000), friendly_name="w"), "y")]))
    ((name, value_type, data),) = sections
    assert isinstance(sections[0], Section)
    assert (name, str(value_type), len(data)) == ("0", "f64[1000]", 8000)


def test_joining_infers_and_upgrades_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_model(FILES[0])
    skeleton, sections = split_model(model)

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("not at import of a blob")

    monkeypatch.setattr("engine.ir.inference.infer", forbidden)
    monkeypatch.setattr("onnx.shape_inference.infer_shapes", forbidden)
    monkeypatch.setattr("engine.onnx.graph_builder.upgrade_call", forbidden)
    data = {section.name: section.data for section in sections}
    assert join_model(skeleton, data.__getitem__).to_text() == model.to_text()


def test_what_the_loader_raises_passes_through() -> None:
    skeleton, _ = split_model(Model([Result(Constant(np.zeros(1000), friendly_name="w"), "y")]))
    with pytest.raises(KeyError, match="0"):
        join_model(skeleton, dict[str, bytes]().__getitem__)


def test_a_capture_of_a_body_stays_one() -> None:
    flag, x = Parameter(ops.Parameter(f32).output(0).element_type, [2], "x"), Parameter(f32, [2], "x2")
    condition = ops.create("Cast", [ops.create("ReduceMax", [flag], {"keepdims": 0})], {"to": 9}, friendly_name="c")
    bodies = {}
    for key, op_type in (("then_branch", "Relu"), ("else_branch", "Neg")):
        capture = Parameter(f32, [2], f"{key}_x")
        bodies[key] = Model([Result(ops.create(op_type, [capture], friendly_name=key), "out")], captures=[capture],
                            name=key)  # fmt: skip
    choose = ops.create("If", [condition, x, x], bodies, num_outputs=1, friendly_name="if")
    again = rejoined(Model([Result(choose, "y")], [flag, x])).node("if")
    assert [v and v.name for v in again.input_values] == ["c", "x2", "x2"]
    assert {key: body.results[0].type for key, body in again.bodies.items()} == dict.fromkeys(bodies, x.type)


def test_data_that_a_device_keeps_in_another_form_is_left_out() -> None:
    """A blob with packed weights would otherwise hold every weight twice."""
    big, small, kept = (Constant(np.ones(n, np.float32), friendly_name=f"c{n}") for n in (1000, 3, 1001))
    model = Model([Result(big, "a"), Result(small, "b"), Result(kept, "c")])
    skeleton, sections = split_model(model, lambda constant: constant.shape != (1001,))
    assert [section.type.shape.get_shape() for section in sections] == [(1001,)]
    again = join_model(skeleton, {section.name: section.data for section in sections}.__getitem__)
    left_out, inline, stored = (result.input_value(0).node for result in again.results)
    assert str(left_out.output(0).type) == str(big.output(0).type)
    with pytest.raises(ModelReadError, match="not in the skeleton"):
        _ = left_out.data
    np.testing.assert_array_equal(inline.data, small.data)
    np.testing.assert_array_equal(stored.data, kept.data)
