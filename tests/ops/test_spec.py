"""Specs of operators: if these fail, a vendor's lowering reads an attribute that is missing, wrong or unresolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from onnx import TensorProto, helper

from engine import Core, ops
from engine.errors import OperatorSpecError
from engine.ir import Node, Parameter, PartialShape, f32
from engine.ops import spec as specs
from engine.ops.spec import OperatorSpec, check_choice, rank_of, refuse, resolved_axes, resolved_axis


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpec(OperatorSpec):
    """Of no registered operator."""

    axis: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))


def test_a_spec_of_another_operator_is_refused() -> None:
    with pytest.raises(OperatorSpecError, match=r"Relu `r`: LogSpec describes no operator, not Relu"):
        LogSpec.of(ops.Relu(Parameter(f32, [2], "x"), friendly_name="r"))


def test_specs_of_equal_operations_are_equal() -> None:
    x = Parameter(f32, [2], "x")
    assert OperatorSpec.of(ops.Relu(x)) == OperatorSpec.of(ops.Relu(x))


@pytest.mark.parametrize(("axis", "expected"), [(0, 0), (-1, 2), (2, 2), (-3, 0)])
def test_axes_are_counted_from_the_front(axis: int, expected: int) -> None:
    node = ops.Relu(Parameter(f32, [2, 3, 4], "x"))
    assert resolved_axis(node, axis, rank_of(node, 0)) == expected


def test_an_axis_out_of_range_names_node_attribute_found_and_allowed() -> None:
    node = ops.Relu(Parameter(f32, [2, 3, 4], "x"), friendly_name="r")
    with pytest.raises(OperatorSpecError, match=r"Relu `r`: attribute axes is 3; allowed: -3\.\.2, as the rank is 3"):
        resolved_axes(node, [0, 3], 3)
    with pytest.raises(OperatorSpecError, match=r"attribute axes is \[0, -3\]; allowed: each axis once"):
        resolved_axes(node, [0, -3], 3)


def test_an_axis_of_unknown_rank_stays() -> None:
    node = ops.Relu(Parameter(f32, PartialShape.dynamic(), "x"))
    assert resolved_axis(node, -1, rank_of(node, 0)) == -1


def test_a_name_that_the_operator_does_not_define_is_refused() -> None:
    node = ops.Relu(Parameter(f32, [2], "x"), friendly_name="r")
    with pytest.raises(OperatorSpecError, match=r"attribute mode is 'cubist'; allowed: linear, cubic"):
        check_choice(node, "mode", "cubist", ("linear", "cubic"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSpec(OperatorSpec):
    """For the time of a test, the spec of an operator that has another, or none."""

    axis: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))


@pytest.fixture
def of_log_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(specs._classes, ("", "LogSoftmax"), AxisSpec)


def _model(*values: int) -> bytes:
    """LogSoftmax over each of these axes, one after the other, of a matrix."""
    names = [f"v{index}" for index in range(len(values) + 1)]
    nodes = [
        helper.make_node(
            "LogSoftmax", names[index : index + 1], names[index + 1 : index + 2], name=f"n{index}", axis=axis
        )
        for index, axis in enumerate(values)
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in (names[0], names[-1]))
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 21)])
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.usefixtures("of_log_softmax")
def test_reading_a_model_refuses_what_a_spec_refuses() -> None:
    with pytest.raises(OperatorSpecError, match=r"LogSoftmax `n1`: attribute axis is 2; allowed: -2\.\.1"):
        Core().read_model(_model(1, 2))


@pytest.mark.usefixtures("of_log_softmax")
def test_making_a_node_refuses_what_its_spec_refuses() -> None:
    x = Parameter(f32, [2, 3], "x")
    with pytest.raises(OperatorSpecError, match=r"LogSoftmax `n`: attribute axis is -3; allowed: -2\.\.1"):
        ops.LogSoftmax(x, axis=-3, friendly_name="n")
    assert specs.spec_of(ops.LogSoftmax(x, axis=-1)) == AxisSpec(node=ops.Relu(x), axis=1)
    assert ops.LogSoftmax(Parameter(f32, [2, 3, 4], "x"), axis=2).attributes == {"axis": 2}
    with pytest.raises(OperatorSpecError, match="attribute axis is 2"):  # though it has passed for another rank
        ops.LogSoftmax(x, axis=2)


@pytest.mark.usefixtures("of_log_softmax")
def test_an_attribute_of_another_type_is_refused() -> None:
    with pytest.raises(OperatorSpecError, match=r"LogSoftmax `n`: attribute axis is 0\.5; allowed: an int"):
        Node("LogSoftmax", [Parameter(f32, [2, 3], "x")], {"axis": 0.5}, friendly_name="n")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledSpec(OperatorSpec):
    """Of an operator of a vendor's domain."""

    factor: float
    steps: int = 1

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given.get("steps", 1) < 1:
            refuse(node, "steps", given["steps"], "1 or more")


def test_operators_of_custom_domains_have_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(specs._classes, ("mine", "Scaled"), ScaledSpec)
    x = Parameter(f32, [2], "x")
    assert ScaledSpec.of(Node("Scaled", [x], {"factor": 2.0}, domain="mine")).steps == 1
    with pytest.raises(OperatorSpecError, match="factor"):
        Node("Scaled", [x], domain="mine")
    node = helper.make_node("Scaled", ["x"], ["y"], name="n", domain="mine", factor=2.0, steps=0)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=imports)
    with pytest.raises(OperatorSpecError, match="Scaled `n`: attribute steps is 0; allowed: 1 or more"):
        Core().read_model(model.SerializeToString())


def test_specs_of_similar_nodes_share_no_values_that_only_compare_equal() -> None:
    """Specs are kept for similar nodes: 0.0 == -0.0, and 1 == 1.0."""
    x = Parameter(f32, [2], "x")
    alphas = [0.0, -0.0, 1.0, 1]
    read = [specs.spec_of(ops.LeakyRelu(x, alpha=alpha)).alpha for alpha in alphas]  # type: ignore[attr-defined]
    assert [str(each) for each in read] == ["0.0", "-0.0", "1.0", "1.0"]


def test_a_changed_attribute_gives_another_spec() -> None:
    node = ops.LeakyRelu(Parameter(f32, [2], "x"), alpha=0.5)
    assert specs.spec_of(node).alpha == 0.5  # type: ignore[attr-defined]
    node.set_attribute("alpha", 0.25)
    assert specs.spec_of(node).alpha == 0.25  # type: ignore[attr-defined]
