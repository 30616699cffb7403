"""What breaks if these fail: nodes that users and passes build are wrong, or are refused without a way out."""

import gc
import inspect
import weakref

import numpy as np
import pytest

from engine import ops
from engine.errors import GraphError, ModelError, TypeInferenceError, UnknownOperatorError, UnsupportedError
from engine.ir import Model, Node, Parameter, Result, f16, f32, i64

TENTH = float(np.float32(0.1))


@pytest.fixture
def x() -> Parameter:
    return Parameter(f32, [1, "N"], "x")


def test_constructor_makes_a_typed_node(x: Parameter) -> None:
    node = ops.LeakyRelu(x, alpha=0.1, friendly_name="act")
    assert (node.op_type, node.domain, node.friendly_name) == ("LeakyRelu", "", "act")
    assert node.attributes == {"alpha": TENTH}
    assert str(node.output(0).type) == "f32[1,N]"
    assert node.input_value(0) == x.output(0)


def test_floats_are_f32_as_onnx_stores_them(x: Parameter) -> None:
    node = ops.LeakyRelu(x, alpha=np.float64(0.1))
    assert node.attributes["alpha"] == TENTH
    node.set_attribute("alpha", 0.2)
    assert node.attributes["alpha"] == float(np.float32(0.2))
    assert "{alpha=0.2}" in str(Model([Result(node)], [x]))
    custom = Node("Any", [x], {"mixed": (1, 0.1), "ints": (2**40, 1), "infinite": float("-inf")}, domain="my", types=[])
    assert custom.attributes == {"mixed": (1.0, TENTH), "ints": (2**40, 1), "infinite": float("-inf")}
    with pytest.raises(ModelError, match=r"attribute 'alpha' is 1e\+39, beyond f32, .* expected -3\.40282e\+38\.\."):
        ops.LeakyRelu(x, alpha=1e39)
    with pytest.raises(ModelError, match=r"attribute 'alpha' is 1000.*, beyond f32"):
        ops.LeakyRelu(x, alpha=10**400)
    assert inspect.signature(ops.LeakyRelu).parameters["alpha"].default == 0.01


def test_create_equals_constructor(x: Parameter) -> None:
    a = ops.create("Transpose", [x.output(0)], {"perm": [1, 0]})
    b = ops.Transpose(x, perm=(1, 0))
    assert (a.attributes, a.output(0).type) == (b.attributes, b.output(0).type) == ({"perm": (1, 0)}, a.output(0).type)


def test_constructors_of_other_domains_go_through_create(x: Parameter) -> None:
    node = ops.create("Scaler", [x], {"scale": [2.0]}, domain="ai.onnx.ml")
    assert (node.domain, str(node.output(0).type)) == ("ai.onnx.ml", "f32[1,N]")
    assert ops.create("Relu", [x], domain="ai.onnx").domain == ""


def test_optional_inputs(x: Parameter) -> None:
    low, high = ops.Constant(0.0), ops.Constant(6.0)
    assert ops.Clip(x, low, None).num_inputs == 2
    assert ops.Clip(x, None, high).input_values[1] is None
    with pytest.raises(ModelError, match=r"input 1 \(W\) is required, but is None"):
        ops.Conv(x, None, low)


def test_attribute_values_are_normalised(x: Parameter) -> None:
    assert ops.Cast(x, to=f16).attributes == {"to": 10}
    assert ops.LeakyRelu(x, alpha=1).attributes == {"alpha": 1.0}
    assert ops.LeakyRelu(x, alpha=None).attributes == {}
    assert ops.Concat(x, x, axis=np.int64(0)).attributes == {"axis": 0}
    assert ops.Transpose(x, perm=np.array([1, 0])).attributes == {"perm": (1, 0)}


def test_default_attribute_values(x: Parameter) -> None:
    node = ops.Softmax(x)
    assert ops.attribute(node, "axis") == -1
    assert ops.attribute(ops.Softmax(x, axis=0), "axis") == 0
    assert ops.attribute(ops.LeakyRelu(x), "alpha") == float(np.float32(0.01))
    assert ops.attribute(ops.Conv(Parameter(f32, [1, 1, 4]), Parameter(f32, [1, 1, 2])), "strides") is None
    with pytest.raises(ModelError, match="has no attribute 'axes'; it has axis"):
        ops.attribute(node, "axes")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.LeakyRelu(x, alph=0.1), "LeakyRelu has no attribute 'alph'; it has alpha"),
        (lambda x: ops.LeakyRelu(x, alpha="a"), "attribute 'alpha' is a float, got str 'a'"),
        (lambda x: ops.Transpose(x, perm=1), "attribute 'perm' is a sequence of ints, got int 1"),
        (lambda x: ops.Transpose(x, perm=[0.5, 1]), "attribute 'perm' is an int, got float 0.5"),
        (lambda x: ops.Concat(x, x), "Concat: required attribute 'axis' is missing"),
        (lambda x: ops.Relu(x, x), r"Relu takes 1 inputs \(X\), got 2"),
        (lambda x: ops.Add(x), r"Add takes 2 inputs \(A, B\), got 1"),
        (lambda x: ops.Sum(), r"Sum takes 1 or more inputs \(\*data_0\), got 0"),
        (lambda x: ops.Relu(x, num_outputs=2), "Relu has 1 outputs, not 2"),
        (lambda x: ops.create("Constant", [], {"value": np.zeros(1)}), r"use ops.Constant\(value\)"),
    ],
)
def test_wrong_arguments_are_named(x: Parameter, build: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(x)  # type: ignore[operator]


@pytest.mark.parametrize("value", [3.0, 1, "text", np.zeros(3, np.float32), [1, 2]])
def test_values_are_not_wrapped_silently(x: Parameter, value: object) -> None:
    with pytest.raises(GraphError, match=r"Add: input 1 \(B\) is .*wrap values in ops.Constant"):
        ops.Add(x, value)  # type: ignore[arg-type]


def test_a_node_of_several_outputs_is_no_input(x: Parameter) -> None:
    parts = ops.Split(x, ops.Constant([1, 1]), axis=1)
    assert parts.num_outputs == 2
    with pytest.raises(GraphError, match="has 2 outputs, so it is ambiguous"):
        ops.Relu(parts)


@pytest.mark.parametrize(("name", "hint"), [("Rlu", "Relu"), ("relu", "Relu"), ("Scaler", "ai.onnx.ml.Scaler")])
def test_unknown_operators_name_close_ones(name: str, hint: str) -> None:
    with pytest.raises(UnknownOperatorError, match=hint):
        ops.create(name, [])
    with pytest.raises(UnsupportedError):
        ops.get_op(name)


def test_unknown_domains_and_deprecated_operators() -> None:
    with pytest.raises(UnknownOperatorError, match=r"engine.ir.Node\('Foo', inputs, attributes, domain='vendor'\)"):
        ops.create("Foo", [], domain="vendor")
    with pytest.raises(UnknownOperatorError, match="'Upsample' is not in opset 28"):
        ops.create("Upsample", [])


def test_module_attributes() -> None:
    assert not hasattr(ops, "NoSuchOperator")
    assert not hasattr(ops, "no_such_name")
    assert ops.Relu is ops.Relu
    assert {"Relu", "LSTM", "create"} <= set(dir(ops))


def test_help_shows_inputs_attributes_and_defaults() -> None:
    signature = inspect.signature(ops.Conv)
    assert list(signature.parameters)[:3] == ["X", "W", "B"]
    assert signature.parameters["group"].default == 1
    assert "kernel_shape: a sequence of ints" in (ops.Conv.__doc__ or "")


def test_number_of_outputs(x: Parameter) -> None:
    assert ops.Dropout(x).num_outputs == 1
    assert ops.Dropout(x, num_outputs=2).num_outputs == 2
    halves = ops.Split(Parameter(f32, [4, 6]), axis=1, num_outputs=2)
    assert [str(o.type) for o in halves.outputs] == ["f32[4,3]", "f32[4,3]"]
    with pytest.raises(ModelError, match="Split: the number of outputs is not known"):
        ops.Split(x, Parameter(i64, ["K"]))


def test_control_flow_counts_its_bodies_outputs() -> None:
    condition, a = Parameter(ops.Constant(True).element_type, []), Parameter(f32, [2])
    then_value, else_value = Parameter(f32, [2], "t"), Parameter(f32, [2], "e")
    then_branch = Model([ops.Relu(then_value)], captures=[then_value])
    else_branch = Model([ops.Neg(else_value)], captures=[else_value])
    bodies = {"then_branch": then_branch, "else_branch": else_branch}
    node = ops.create("If", [condition, a, a], bodies)
    assert (node.num_outputs, node.num_formal_inputs) == (1, 1)
    with pytest.raises(ModelError, match="and 2 captured values, got 2"):
        ops.create("If", [condition, a], bodies)


def test_nothing_keeps_a_node_that_is_not_used(x: Parameter) -> None:
    reference = weakref.ref(ops.Relu(x))
    gc.collect()
    assert reference() is None


def test_registry_knows_ports_and_properties() -> None:
    conv, add = ops.get_op("Conv"), ops.get_op("Add")
    assert [port.name for port in conv.inputs] == ["X", "W", "B"]
    assert [port.is_optional for port in conv.inputs] == [False, False, True]
    assert f32 in conv.inputs[0].elements
    assert i64 not in conv.inputs[0].elements
    assert add.is_commutative
    assert not ops.get_op("Sub").is_commutative
    assert ops.get_op("Concat").is_variadic
    assert not ops.get_op("RandomNormal").is_deterministic
    assert ops.get_op("DepthToSpace").is_deterministic
    assert ops.find_op("Scatter") is None
    assert len(ops.all_ops()) > 200


def test_type_errors_name_node_inputs_and_expectation(x: Parameter) -> None:
    with pytest.raises(TypeInferenceError) as caught:
        ops.Concat(x, x, axis=4, friendly_name="cat_3")
    assert str(caught.value) == (
        "Concat `cat_3`: attribute axis is 4; allowed: -2..1, as the rank is 2; "
        "inputs: inputs[0] f32[1,N], inputs[1] f32[1,N]"
    )
