"""Model-local functions: what a call computes, whatever its function's attributes, names, opset and place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from engine.errors import EngineError, GraphError, ModelReadError
from engine.ir import f32
from engine.onnx import model_to_proto, read_model
from engine.ops import evaluate_model

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.array([-1, -2, 3], np.float32)
OPSET = helper.make_opsetid("", 18)
LOCAL = helper.make_opsetid("local", 1)
node = helper.make_node


def tensor(kind: type, values: Any, name: str = "") -> TensorProto:
    return numpy_helper.from_array(np.array(values, kind), name)


def value(name: str, kind: int = FLOAT, shape: Sequence[int] | None = (3,)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def call(name: str, inputs: str = "x", outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return node(name, inputs.split(), outputs.split(), domain="local", **attributes)


def referring(made: onnx.NodeProto, name: str, to: str, kind: int) -> onnx.NodeProto:
    """The node, whose attribute `name` is the function's attribute `to`."""
    made.attribute.append(AttributeProto(name=name, ref_attr_name=to, type=kind))  # type: ignore[arg-type]
    return made


def function(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    defaults: Sequence[AttributeProto] = (),
    attributes: Sequence[str] = (),
    inputs: str = "x",
    outputs: str = "y",
    imports: Sequence[onnx.OperatorSetIdProto] = (OPSET, LOCAL),
    **options: Any,
) -> onnx.FunctionProto:
    return helper.make_function(
        "local", name, inputs.split(), outputs.split(), nodes, imports, attributes, defaults, **options
    )


def model_of(
    nodes: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto], outputs: str = "y", **options: Any
) -> onnx.ModelProto:
    infos = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs.split()]
    for info in infos:
        info.ClearField("type")
    inputs = options.pop("inputs", [value("x"), value("c", BOOL, ())])
    graph = helper.make_graph(nodes, "g", inputs, infos, options.pop("initializers", ()))
    return helper.make_model(graph, functions=functions, opset_imports=[OPSET, LOCAL], ir_version=10, **options)


def results(proto: onnx.ModelProto, feeds: Sequence[Any] = (X, np.array(True))) -> list[Any]:
    """The results of the model, which must be the same once it is written and read again."""
    model = read_model(proto)
    found = evaluate_model(model, list(feeds))
    for one, other in zip(found, evaluate_model(read_model(model_to_proto(model)), list(feeds)), strict=True):
        np.testing.assert_array_equal(one, other)
    return found


def leaky(name: str = "act", default: float | None = 0.5) -> onnx.FunctionProto:
    inner = referring(node("LeakyRelu", ["x"], ["y"]), "alpha", "a", AttributeProto.FLOAT)
    given = [] if default is None else [helper.make_attribute("a", default)]
    return function(name, [inner], given, [] if given else ["a"])


def scaled(alpha: float, x: Any = X) -> Any:
    return np.where(x < 0, x * np.float32(alpha), x)


def test_a_call_without_an_attribute_has_the_functions_default_not_the_operators() -> None:
    assert_equal(results(model_of([call("act")], [leaky()]))[0], scaled(0.5))
    assert_equal(results(model_of([call("act", a=0.25)], [leaky()]))[0], scaled(0.25))


def assert_equal(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found, np.asarray(expected))


_GRAPH = helper.make_graph([node("Neg", ["x"], ["n"])], "negated", [], [value("n")])
_OTHER = helper.make_graph([node("Abs", ["x"], ["n"])], "absolute", [], [value("n")])
_SPARSE = helper.make_sparse_tensor(tensor(np.float32, [5], "v"), tensor(np.int64, [1], "i"), [3])


@pytest.mark.parametrize(
    ("attribute", "kind", "default", "expected", "given", "instead"),
    [
        ("value_float", AttributeProto.FLOAT, 2.0, 2, 3.0, 3),
        ("value_floats", AttributeProto.FLOATS, [2.0, 1, 0], [2, 1, 0], [3.0, 3, 3], [3, 3, 3]),
        ("value_int", AttributeProto.INT, 2, 2, 3, 3),
        ("value_ints", AttributeProto.INTS, [2, 1, 0], [2, 1, 0], [3, 3, 3], [3, 3, 3]),
        ("value", AttributeProto.TENSOR, tensor(np.float32, [5]), 5,
         tensor(np.float32, [[0, 1, 2]] * 200), [0, 1, 2]),
        ("sparse_value", AttributeProto.SPARSE_TENSOR, _SPARSE, [0, 5, 0], _SPARSE, [0, 5, 0]),
    ],
)  # fmt: skip
def test_defaults_of_every_type(
    attribute: str, kind: int, default: Any, expected: Any, given: Any, instead: Any
) -> None:
    constant = referring(node("Constant", [], ["k"]), attribute, "a", kind)
    nodes = [constant, node("Cast", ["k"], ["f"], to=FLOAT), node("Add", ["x", "f"], ["y"])]
    added = function("added", nodes, [helper.make_attribute("a", default)])
    assert_equal(results(model_of([call("added")], [added]))[0], X + np.float32(expected))
    (other,) = results(model_of([call("added", a=given)], [added]))
    assert_equal(other, np.broadcast_to(X + np.float32(instead), other.shape))


def test_a_type_as_default() -> None:
    """The operator's own type of the sequence's elements is f32."""
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(INT64, [2]))
    made = referring(node("Optional", [], ["o"]), "type", "a", AttributeProto.TYPE_PROTO)
    has = function("has", [made, node("OptionalHasElement", ["o"], ["y"])],
                   [helper.make_attribute("a", kind.optional_type.elem_type)])  # fmt: skip
    assert not results(model_of([call("has", "")], [has]))[0]


def _body(name: str) -> onnx.GraphProto:
    return helper.make_graph([node("Constant", [], ["k"], value_float=1.0)], name, [], [value("k", FLOAT, ())])


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (AttributeProto.STRING, "s"),
        (AttributeProto.GRAPH, _body("a")),
        (AttributeProto.GRAPHS, [_body("a")]),
        (AttributeProto.TENSORS, [tensor(np.float32, [1, 2]), tensor(np.int64, 3)]),
        (AttributeProto.SPARSE_TENSORS, [_SPARSE]),
        (AttributeProto.TYPE_PROTO, helper.make_tensor_type_proto(FLOAT, [2])),
        (AttributeProto.TYPE_PROTOS, [helper.make_tensor_type_proto(kind, None) for kind in (FLOAT, INT64)]),
    ],
)
def test_defaults_that_only_custom_operators_take(kind: int, default: Any) -> None:
    own = referring(node("Own", ["x"], ["y"], domain="their"), "attr", "d", kind)
    imports = [OPSET, helper.make_opsetid("their", 1)]
    inner = function("f", [own], [helper.make_attribute("d", default)], imports=imports)
    direct = node("Own", ["x"], ["y"], domain="their", attr=default)
    models = [read_model(model_of([call("f")], [inner])), read_model(model_of([direct], [inner]))]
    again = [read_model(model_to_proto(model)) for model in models]
    found, expected, *_ = (repr(model.outputs[0].node.attributes) for model in (*models, *again))
    assert found.replace("f/k", "k") == expected


def test_strings_as_default() -> None:
    made = referring(node("Constant", [], ["y"]), "value_strings", "a", AttributeProto.STRINGS)
    texts = function("texts", [made], [helper.make_attribute("a", ["p", "q"])], inputs="")
    assert list(results(model_of([call("texts", "")], [texts]))[0]) == ["p", "q"]
    assert list(results(model_of([call("texts", "", a=["r"])], [texts]))[0]) == ["r"]


def test_graphs_as_defaults_and_as_values_read_the_values_of_where_they_are_written() -> None:
    branch = node("If", ["c"], ["y"], else_branch=_OTHER)
    chosen = function(
        "chosen", [referring(branch, "then_branch", "g", AttributeProto.GRAPH)],
        [helper.make_attribute("g", _GRAPH)], inputs="c x",
    )  # fmt: skip
    graph = helper.make_graph([node("Mul", ["x", "x"], ["n"])], "square", [], [value("n")])
    # In the default, x is the function's input, which is 2x here; in the call's graph, x is the caller's.
    nodes = [node("Add", ["x", "x"], ["d"]), call("chosen", "c d", "p"), call("chosen", "c d", "q", g=graph)]
    p, q = results(model_of(nodes, [chosen], "p q"))
    assert_equal(p, -2 * X)
    assert_equal(q, X * X)


def test_calls_in_bodies_and_in_other_functions_have_defaults_too() -> None:
    outer = function("outer", [call("act", "x", "t"), referring(call("act", "t", "y"), "a", "b", AttributeProto.FLOAT)],
                     [helper.make_attribute("b", 0.25)])  # fmt: skip
    assert_equal(results(model_of([call("outer")], [outer, leaky()]))[0], scaled(0.125))
    branch = helper.make_graph([call("outer", "x", "n")], "then", [], [value("n")])
    chosen = node("If", ["c"], ["y"], then_branch=branch, else_branch=_OTHER)
    assert_equal(results(model_of([chosen], [outer, leaky()]))[0], scaled(0.125))
    body = helper.make_graph(
        [call("act", "s", "t"), node("Identity", ["go"], ["still"])], "body",
        [value("i", INT64, ()), value("go", BOOL, ()), value("s")], [value("still", BOOL, ()), value("t")],
    )  # fmt: skip
    trips = tensor(np.int64, 3, "trips")
    looped = model_of([node("Loop", ["trips", "", "x"], ["y"], body=body)], [leaky()], initializers=[trips])
    assert_equal(results(looped)[0], scaled(0.125))
    scan = helper.make_graph([call("act", "e", "t")], "scan", [value("e", FLOAT, ())], [value("t", FLOAT, ())])
    scanned = model_of([node("Scan", ["x"], ["y"], body=scan, num_scan_inputs=1)], [leaky()])
    assert_equal(results(scanned)[0], scaled(0.5))
    inside = function("inside", [chosen], inputs="c x")  # the call is in a body within a function
    assert_equal(results(model_of([call("inside", "c x")], [inside, outer, leaky()]))[0], scaled(0.125))


def test_an_attribute_of_the_same_name_in_the_caller_is_another() -> None:
    outer = function("outer", [call("act", "x", "t"), referring(node("Elu", ["t"], ["y"]), "alpha", "a", 1)],
                     [helper.make_attribute("a", 2.0)])  # fmt: skip
    expected = scaled(0.5)
    expected = np.where(expected < 0, np.expm1(expected) * 3, expected)
    found = results(model_of([call("outer", a=3.0)], [outer, leaky()]))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_overloads_have_their_own_defaults() -> None:
    first, second = leaky("act", 0.5), leaky("act", 0.25)
    second.overload = "other"
    other = call("act", "x", "q")
    other.overload = "other"
    p, q = results(model_of([call("act", "x", "p"), other], [first, second], "p q"))
    assert_equal(p, scaled(0.5))
    assert_equal(q, scaled(0.25))


def test_an_attribute_without_a_value_is_omitted_and_one_that_is_required_is_named() -> None:
    assert_equal(results(model_of([call("act")], [leaky(default=None)]))[0], scaled(0.01))
    cast = referring(node("Cast", ["x"], ["y"]), "to", "kind", AttributeProto.INT)
    with pytest.raises(ModelReadError, match=r"`y`: attribute `kind` of local function `local\.cast` has no value"):
        read_model(model_of([call("cast")], [function("cast", [cast], (), ["kind"])]))
    outer = function("outer", [referring(call("cast"), "kind", "k", AttributeProto.INT)], (), ["k"])
    with pytest.raises(ModelReadError, match=r"attribute `kind` of local function `local\.cast` has no value"):
        read_model(model_of([call("outer")], [outer, function("cast", [cast], (), ["kind"])]))


def test_a_default_is_written_for_the_functions_opset() -> None:
    """ReduceSum had axes as an attribute until opset 12, Softmax another default axis."""
    reduced = referring(node("ReduceSum", ["x"], ["r"], keepdims=1), "axes", "a", AttributeProto.INTS)
    nodes = [reduced, node("Softmax", ["r"], ["y"])]
    old = function("old", nodes, [helper.make_attribute("a", [1])], imports=[helper.make_opsetid("", 11)])
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8
    sums = np.exp(x.sum(1, keepdims=True))
    (found,) = results(model_of([call("old")], [old], inputs=[value("x", FLOAT, (2, 3, 4))]), [x])
    np.testing.assert_allclose(found, sums / sums.sum((1, 2), keepdims=True), rtol=1e-5)


def test_values_of_functions_do_not_meet_those_of_the_caller() -> None:
    """The function's `t` and the body's `x` have names of the model, and `x` is read where they are visible."""
    body = helper.make_graph([node("Add", ["t", "u"], ["x"])], "b", [], [value("x")])
    inner = function("inner", [node("Neg", ["u"], ["t"]), node("If", ["c"], ["y"], then_branch=body, else_branch=body)],
                     inputs="c u")  # fmt: skip
    nodes = [node("Mul", ["x", "x"], ["t"]), call("inner", "c x", "z"), call("inner", "c t", "w"),
             node("Sum", ["z", "w", "t"], ["y"])]  # fmt: skip
    assert_equal(results(model_of(nodes, [inner]))[0], X * X)


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "expected"),
    [
        ([], "x", "x x", [X, X]),
        ([("Neg", "x", "t")], "x", "t t", [-X, -X]),
        ([("Neg", "x", "t"), ("Neg", "t", "u")], "x", "u t", [X, -X]),
    ],
)
def test_functions_whose_outputs_are_inputs_or_repeated(
    nodes: list[tuple[str, str, str]], inputs: str, outputs: str, expected: list[Any]
) -> None:
    made = [node(op_type, source.split(), target.split()) for op_type, source, target in nodes]
    proto = model_of([call("f", "x", "p q")], [function("f", made, inputs=inputs, outputs=outputs)], "p q")
    for found, each in zip(results(proto), expected, strict=True):
        assert_equal(found, each)


def test_calls_may_omit_inputs_and_outputs() -> None:
    clip = function("clip", [node("Clip", ["x", "low", "high"], ["y"]), node("Neg", ["x"], ["z"])],
                    inputs="x low high", outputs="z y")  # fmt: skip
    limit = tensor(np.float32, 0, "limit")
    nodes = [call("clip", "x limit", "a y")]
    nodes[0].output[0] = ""
    assert_equal(results(model_of(nodes, [clip], initializers=[limit]))[0], np.maximum(X, 0))
    nodes = [node("clip", ["x", "", "limit"], ["z"], domain="local")]
    assert_equal(results(model_of(nodes, [clip], "z", initializers=[limit]))[0], -X)


def test_types_that_a_function_states_are_those_of_its_values() -> None:
    """A custom operator's output has no other type."""
    custom = node("Custom", ["x"], ["t"], domain="their")
    made = function("f", [custom, node("Neg", ["t"], ["y"])], value_info=[value("t")],
                    imports=[OPSET, helper.make_opsetid("their", 1)])  # fmt: skip
    assert read_model(model_of([call("f")], [made])).outputs[0].element_type is f32


_NEG = node("Neg", ["x"], ["y"])


@pytest.mark.parametrize(
    ("nodes", "functions", "error", "words"),
    [
        ([call("f")], [function("f", [call("f")])], GraphError, r"call themselves: `local\.f` -> `local\.f`"),
        ([call("f", g=helper.make_graph([call("f", "x", "n")], "b", [], [value("n")]))],
         [function("f", [node("If", ["x"], ["y"], else_branch=_OTHER)], attributes=["g"])], EngineError, "then_branch"),
        ([call("f")],
         [function("f", [referring(node("If", ["x"], ["y"], else_branch=_OTHER), "then_branch", "g", 5)],
                   [helper.make_attribute("g", helper.make_graph([call("f", "x", "n")], "b", [], [value("n")]))])],
         GraphError, "call themselves"),
        ([call("f", "x x")], [function("f", [_NEG])], ModelReadError, r"has 2 inputs; local function `local\.f` has 1"),
        ([call("f", "x", "y z")], [function("f", [_NEG])], ModelReadError, "has 2 outputs; .* has 1"),
        ([call("f", b=1)], [leaky("f")], ModelReadError, "has no attribute `b`; it has `a`"),
        ([call("f")], [function("f", [node("Neg", ["c"], ["y"])])], ModelReadError, "reads `c`, .* as an input"),
        ([call("f")], [function("f", [], outputs="z")], ModelReadError, "output `z` .* neither an input nor computed"),
        ([call("f", "")], [function("f", [], outputs="x")], ModelReadError, "output `x` .* that the call omits"),
        ([call("f")], [function("f", [_NEG, _NEG])], GraphError, "`y` is defined twice"),
        ([call("f")], [function("f", [_NEG], inputs="x x")], GraphError, "two inputs of one name"),
        ([call("f")], [function("f", [_NEG]), function("f", [_NEG])], ModelReadError, "is defined twice"),
        ([referring(node("Elu", ["x"], ["y"]), "alpha", "a", 1)], [leaky()], ModelReadError, "but is not in one"),
        ([referring(node("Elu", ["x"], ["y"]), "alpha", "a", 1)], [], ModelReadError, "is not in one"),
    ],
)  # fmt: skip
def test_what_is_not_valid_is_named(
    nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto], error: type[EngineError], words: str
) -> None:
    with pytest.raises(error, match=words):
        read_model(model_of(nodes, functions))


def test_graphs_that_functions_pass_on_twice_do_not_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function passes a graph on that has two copies of the one that it was given."""
    monkeypatch.setattr("engine.onnx.function_calls._MAX_NODES", 20_000)
    functions = []
    for level in range(40):
        twice = [node("If", ["c"], [name], else_branch=_OTHER) for name in ("p", "q")]
        for branch in twice:
            referring(branch, "then_branch", "g", AttributeProto.GRAPH)
        graph = helper.make_graph([*twice, node("Add", ["p", "q"], ["n"])], "b", [], [value("n")])
        inner = call(f"f{level + 1}", "c x", "y", g=graph) if level < 39 else node("Neg", ["x"], ["y"])
        functions.append(function(f"f{level}", [inner], attributes=["g"], inputs="c x"))
    with pytest.raises(ModelReadError, match="more than 20000 nodes and calls"):
        read_model(model_of([call("f0", "c x", "y", g=_GRAPH)], functions))


def test_a_default_that_refers_to_itself_is_named() -> None:
    branch = referring(node("If", ["b"], ["o"]), "then_branch", "g", AttributeProto.GRAPH)
    body = helper.make_graph([branch], "body", [], [value("o", shape=None)])
    caller = referring(node("If", ["b"], ["y"]), "then_branch", "g", AttributeProto.GRAPH)
    default = [helper.make_attribute("g", body)]
    function = helper.make_function("local", "F", ["b"], ["y"], [caller], [OPSET], attribute_protos=default)
    graph = helper.make_graph([call("F", "b")], "model", [value("b", BOOL, ())], [value("y", shape=None)])
    model = helper.make_model(graph, opset_imports=[OPSET, LOCAL], functions=[function])
    with pytest.raises(
        ModelReadError, match=r"the default of attribute `g` of local function `?local.F.* refers to itself"
    ):
        read_model(model)
