"""What breaks if these fail: models with If, Loop, Scan or SequenceMap get wrong types or wrong results."""

import numpy as np
import onnx
import onnx.parser
import pytest

from engine import Core, ops
from engine.errors import InputError, TypeInferenceError
from engine.ir import Constant, Model, Node, Parameter, PartialShape, SequenceType, TensorType, boolean, f32, i64


def f(*values: object) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def types(node: Node) -> list[str]:
    return [str(output.type) for output in node.outputs]


# -- If ----------------------------------------------------------------------------------------------------


def conditional(condition: Parameter, then_value: Node, else_value: Node) -> Node:
    """If over two values of the outer graph, doubled or negated in the branches."""
    t, e = Parameter(f32, None, "t"), Parameter(f32, None, "e")
    branches = {
        "then_branch": Model([ops.Add(t, t)], captures=[t], name="then"),
        "else_branch": Model([ops.Neg(e)], captures=[e], name="else"),
    }
    return ops.create("If", [condition, then_value, else_value], branches)


@pytest.mark.parametrize(
    ("then_shape", "else_shape", "expected"),
    [
        ([2, 3], [2, 3], "f32[2,3]"),
        ([2, 3], [4, 3], "f32[2..4,3]"),
        (["N"], ["N"], "f32[N]"),
        ([2], [2, 3], "f32[...]"),
    ],
)
def test_if_takes_in_both_branches(then_shape: list[object], else_shape: list[object], expected: str) -> None:
    node = conditional(Parameter(boolean, []), Parameter(f32, then_shape), Parameter(f32, else_shape))
    assert types(node) == [expected]


def test_if_runs_one_branch() -> None:
    condition, a, b = Parameter(boolean, [], "c"), Parameter(f32, [1], "a"), Parameter(f32, [1], "b")
    model = Model([conditional(condition, a, b)], [condition, a, b])
    assert ops.evaluate_model(model, [np.array(True), f(2), f(5)])[0].tolist() == [4]
    assert ops.evaluate_model(model, [np.array([False]), f(2), f(5)])[0].tolist() == [-5]


def test_if_with_branches_of_different_types_is_refused() -> None:
    value = Constant(f(1.0))
    bodies = {"then_branch": Model([value]), "else_branch": Model([Constant([1])])}
    with pytest.raises(TypeInferenceError, match=r"output 0 is f32\[1\] in one case and i64\[1\] in another"):
        ops.create("If", [Parameter(boolean, [])], bodies)


def product(rows: int) -> Model:
    t = Parameter(f32, None, "t")
    return Model([ops.MatMul(t, Constant(np.ones((rows, 2), np.float32)))], captures=[t])


def of_products(condition: Node, x: Node, then_rows: int, else_rows: int) -> Node:
    bodies = {"then_branch": product(then_rows), "else_branch": product(else_rows)}
    return ops.create("If", [condition, x, x], bodies, friendly_name="i")


def test_errors_inside_a_body_name_the_body() -> None:
    with pytest.raises(TypeInferenceError, match=r"If `i`, then_branch: .*MatMul"):
        of_products(Parameter(boolean, []), Parameter(f32, [2, 2]), 3, 4)


def test_a_branch_of_wrong_element_types_is_refused() -> None:
    condition, x = Parameter(boolean, []), Parameter(f32, [2, 2])
    bodies = {"then_branch": product(2), "else_branch": Model([Constant(f(1.0))])}
    node = ops.create("If", [condition, x], bodies, friendly_name="i")
    x.type = TensorType(i64, PartialShape([2, 2]))
    with pytest.raises(TypeInferenceError, match=r"If `i`, then_branch: .*MatMul"):
        node.infer_types()


def test_a_branch_that_does_not_fit_the_shapes_is_an_error_only_if_it_is_taken() -> None:
    condition, x = Parameter(boolean, [], "c"), Parameter(f32, [5, 2], "x")
    node = of_products(condition, x, 3, 2)
    assert types(node) == ["f32[5,2]"]
    model = Model([node], [condition, x])
    data = np.ones((5, 2), np.float32)
    assert ops.evaluate_model(model, [np.array(False), data])[0].tolist() == [[2, 2]] * 5
    with pytest.raises(InputError, match="MatMul"):
        ops.evaluate_model(model, [np.array(True), data])
    x.type = TensorType(f32, PartialShape([5, 3]))  # now it is the other one
    assert node.infer_types() is False
    assert ops.evaluate_model(model, [np.array(True), np.ones((5, 3), np.float32)])[0].tolist() == [[3, 3]] * 5


def test_only_the_branch_of_a_constant_condition_is_judged() -> None:
    value = Constant(f(1.0))
    bodies = {"then_branch": Model([value]), "else_branch": Model([Constant([1])])}
    assert types(ops.create("If", [Constant(True)], bodies)) == ["f32[1]"]
    assert types(ops.create("If", [Constant(False)], bodies)) == ["i64[1]"]
    with pytest.raises(TypeInferenceError, match=r"If `i`, else_branch: .*MatMul"):
        of_products(Constant(False), Parameter(f32, [2, 2]), 2, 3)


def test_branches_nested_deep_are_inferred_in_time_that_does_not_grow_exponentially() -> None:
    """Neither branch of the innermost If fits, so that each level would try once more."""
    x = Parameter(f32, [2, 5], "x")
    levels = 24

    def level(depth: int, condition: Node, value: Node) -> Node:
        if not depth:
            return of_products(condition, value, 3, 4)
        bodies = {}
        for name in ("then_branch", "else_branch"):
            c, t = Parameter(boolean, [], "c"), Parameter(f32, None, "t")
            inner = level(depth - 1, c, t) if name == "then_branch" else ops.MatMul(t, Constant(f(*[1.0] * 3)))
            bodies[name] = Model([inner], captures=[c, t] if name == "then_branch" else [t])
        return ops.create("If", [condition, condition, value, value], bodies)

    node = level(levels, Parameter(boolean, []), Parameter(f32, None))
    node.input(2).replace_source_output(x)
    node.input(3).replace_source_output(x)
    with pytest.raises(TypeInferenceError, match="MatMul"):
        node.infer_types()


def test_a_changed_capture_reaches_the_body() -> None:
    a = Parameter(f32, [2])
    node = conditional(Parameter(boolean, []), a, a)
    a.type = TensorType(f32, PartialShape([7]))
    assert node.infer_types()
    assert types(node) == ["f32[7]"]


# -- Loop ----------------------------------------------------------------------------------------------------


def loop_body(grows: bool = False) -> Model:
    """total += iteration + step (a capture); stops when total reaches 10; scans out the total."""
    iteration, go_on, total = Parameter(i64, [], "i"), Parameter(boolean, [], "go"), Parameter(f32, None, "total")
    step = Parameter(f32, None, "step")
    added = ops.Add(ops.Add(total, ops.Cast(iteration, to=f32)), step)
    result = ops.Concat(added, added, axis=0) if grows else added
    condition = ops.Less(ops.ReduceMax(added, keepdims=0), Constant(10.0))
    return Model(
        [ops.And(condition, go_on), result, ops.ReduceSum(result, keepdims=0)], [iteration, go_on, total],
        captures=[step], name="body",
    )  # fmt: skip


def test_loop_counts_carries_and_scans() -> None:
    trips, step = Parameter(i64, [], "m"), Parameter(f32, [], "s")
    node = ops.create("Loop", [trips, Constant(True), Constant(f(0.0)), step], {"body": loop_body()})
    assert types(node) == ["f32[1]", "f32[?]"]
    model = Model(node.outputs, [trips, step])
    total, scanned = ops.evaluate_model(model, [np.array(3), f(0.5)[0]])
    assert (total.tolist(), scanned.tolist()) == ([4.5], [0.5, 2.0, 4.5])
    total, scanned = ops.evaluate_model(model, [np.array(100), f(2)[0]])
    assert (total.tolist(), scanned.tolist()) == ([14], [2, 5, 9, 14])
    total, scanned = ops.evaluate_model(model, [np.array(0), f(2)[0]])
    assert (total.tolist(), scanned.shape, scanned.dtype) == ([0], (0,), np.float32)


def test_loop_without_a_condition_ignores_that_of_its_body() -> None:
    node = ops.create("Loop", [Constant(5), None, Constant(f(0.0)), Constant(np.float32(2))], {"body": loop_body()})
    assert types(node) == ["f32[1]", "f32[5]"]
    total, scanned = ops.evaluate_model(Model(node.outputs), [])
    assert (total.tolist(), scanned.tolist()) == ([20], [2, 5, 9, 14, 20])


@pytest.mark.parametrize("captures", [True, False])
def test_loop_without_an_end_is_refused(captures: bool) -> None:
    body = loop_body()
    if not captures:
        body = Model([body.parameters[1], body.parameters[0]], body.parameters[:2])
    with pytest.raises(TypeInferenceError, match="never end; give one of them"):
        ops.create("Loop", [None, None, *([Constant(f(0.0)), Constant(f(2))] if captures else [])], {"body": body})


def test_loop_condition_may_come_from_outside() -> None:
    go = Parameter(boolean, [], "go")
    node = ops.create("Loop", [None, go, Constant(f(0.0)), Constant(np.float32(1))], {"body": loop_body()})
    model = Model([node.output(0)], [go])
    assert ops.evaluate_model(model, [np.array(False)])[0].tolist() == [0]
    assert ops.evaluate_model(model, [np.array(True)])[0].tolist() == [10]


def test_loop_state_that_grows_has_an_unknown_length() -> None:
    node = ops.create("Loop", [Constant(4), None, Constant(f(0.0)), Constant(np.float32(1))], {"body": loop_body(True)})
    assert types(node) == ["f32[?]", "f32[4]"]
    assert node.attributes["body"].parameters[2].output(0).shape == PartialShape([None])
    total, scanned = ops.evaluate_model(Model(node.outputs), [])
    assert (total.shape, scanned.shape) == ((16,), (4,))


def test_loop_carries_sequences() -> None:
    iteration, go_on = Parameter(i64, [], "i"), Parameter(boolean, [], "go")
    sequence = Parameter(SequenceType(None), friendly_name="s")
    value = ops.Range(Constant(0), iteration, Constant(1))
    body = Model([ops.Identity(go_on), ops.SequenceInsert(sequence, value)], [iteration, go_on, sequence])
    empty = ops.SequenceEmpty(dtype=i64)
    node = ops.create("Loop", [Constant(3), None, empty], {"body": body})
    assert types(node) == ["seq(i64[...])"]
    (result,) = ops.evaluate_model(Model([node]), [])
    assert [v.tolist() for v in result] == [[], [0], [0, 1]]


@pytest.mark.parametrize("num_inputs", [2, 4])
def test_loop_whose_body_does_not_fit_is_refused(num_inputs: int) -> None:
    inputs = [Constant(1), None, *[Constant(f(0.0))] * (num_inputs - 2), Constant(np.float32(1))]
    with pytest.raises(TypeInferenceError, match=r"body `body`.* has 3 inputs and 3 outputs; expected"):
        ops.create("Loop", inputs, {"body": loop_body()}, num_outputs=2)


# -- Scan ----------------------------------------------------------------------------------------------------


def scan(attributes: dict[str, object], *inputs: Parameter) -> Node:
    """Running sums: the state is the sum; scanned out are the sums so far."""
    state, element = Parameter(f32, None, "state"), Parameter(f32, None, "x")
    total = ops.Add(state, element)
    body = Model([total, ops.Identity(total)], [state, element], name="sums")
    return ops.create("Scan", list(inputs), {"body": body, "num_scan_inputs": 1, **attributes})


@pytest.mark.parametrize(
    ("attributes", "shape", "expected_types", "expected"),
    [
        ({}, ["T", 2], ["f32[2]", "f32[T,2]"], [[0, 1], [2, 4], [6, 9]]),
        ({"scan_input_directions": [1]}, ["T", 2], ["f32[2]", "f32[T,2]"], [[4, 5], [6, 8], [6, 9]]),
        ({"scan_output_directions": [1]}, ["T", 2], ["f32[2]", "f32[T,2]"], [[6, 9], [2, 4], [0, 1]]),
        ({"scan_output_axes": [-1]}, ["T", 2], ["f32[2]", "f32[2,T]"], [[0, 2, 6], [1, 4, 9]]),
        ({"scan_input_axes": [1]}, [3, 2], ["f32[3]", "f32[2,3]"], [[0, 2, 4], [1, 5, 9]]),
    ],
)
def test_scan(attributes: dict[str, object], shape: list[object], expected_types: list[str], expected: object) -> None:
    lanes = 3 if "scan_input_axes" in attributes else 2
    start, x = Parameter(f32, [lanes], "start"), Parameter(f32, shape, "x")
    node = scan(attributes, start, x)
    assert types(node) == expected_types
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    _, sums = ops.evaluate_model(Model(node.outputs, [start, x]), [np.zeros(lanes, np.float32), data])
    assert sums.tolist() == expected


def test_scan_over_nothing() -> None:
    start, x = Parameter(f32, [2], "start"), Parameter(f32, [None, 2], "x")
    model = Model(scan({}, start, x).outputs, [start, x])
    state, sums = ops.evaluate_model(model, [f(1, 2), np.zeros((0, 2), np.float32)])
    assert (state.tolist(), sums.shape) == ([1, 2], (0, 2))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_what_a_scan_over_nothing_stacks_has_the_lengths_of_the_values_given(axis: int) -> None:
    """Not 0 for each length that the model leaves open: a device that knows the lengths would answer otherwise."""
    start, x = Parameter(f32, [None, None], "start"), Parameter(f32, [None, None, None], "x")
    model = Model(scan({"scan_output_axes": [axis]}, start, x).outputs, [start, x])
    _, sums = ops.evaluate_model(model, [np.zeros((4, 1), np.float32), np.zeros((0, 4, 1), np.float32)])
    shape = [4, 1]
    shape.insert(axis % 3, 0)
    assert sums.shape == tuple(shape)
    assert str(model.parameters[1].type) == "f32[?,?,?]"  # inference for these lengths has changed no type


def test_what_a_loop_without_iterations_stacks() -> None:
    """The lengths of its first iteration; 0 for one that depends on values."""
    trips, x = Parameter(i64, [], "trips"), Parameter(f32, [None], "x")
    i, go, state = Parameter(i64, [], "i"), Parameter(boolean, [], "go"), Parameter(f32, [None], "s")
    grown = ops.Concat(state, state, axis=0)
    body = Model([go, grown, ops.Identity(grown), ops.NonZero(state)], [i, go, state], name="b")
    model = Model(ops.create("Loop", [trips, None, x], {"body": body}).outputs, [trips, x])
    state_then, grown_then, places = ops.evaluate_model(model, [np.array(0), f(1, 2, 3)])
    assert (state_then.tolist(), grown_then.shape, places.shape) == ([1, 2, 3], (0, 6), (0, 1, 0))


def test_a_body_that_could_not_run_matters_only_if_it_runs() -> None:
    trips, x = Parameter(i64, [], "trips"), Parameter(f32, None, "x")
    i, go, state = Parameter(i64, [], "i"), Parameter(boolean, [], "go"), Parameter(f32, None, "s")
    product = ops.MatMul(state, Constant(np.ones((3, 3), np.float32)))
    body = Model([go, state, ops.Reshape(product, Constant([-1]))], [i, go, state], name="b")
    model = Model(ops.create("Loop", [trips, None, x], {"body": body}).outputs, [trips, x])
    _, sums = ops.evaluate_model(model, [np.array(0), f(1, 2)])
    assert sums.shape == (0, 0)
    with pytest.raises(InputError, match="MatMul"):
        ops.evaluate_model(model, [np.array(1), f(1, 2)])


def test_scan_inputs_must_have_one_length() -> None:
    a, b = Parameter(f32, None, "a"), Parameter(f32, None, "b")
    body = Model([ops.Add(a, b)], [a, b])
    with pytest.raises(TypeInferenceError, match="sequence lengths 3 and 4; expected equal lengths"):
        ops.create("Scan", [Parameter(f32, [3]), Parameter(f32, [4])], {"body": body, "num_scan_inputs": 2})
    free = Parameter(f32, [None], "p"), Parameter(f32, [None], "q")
    node = ops.create("Scan", list(free), {"body": body.clone(), "num_scan_inputs": 2})
    with pytest.raises(InputError, match=r"sequence lengths \[3, 4\]"):
        ops.evaluate_model(Model([node], list(free)), [np.zeros(3, np.float32), np.zeros(4, np.float32)])


# -- SequenceMap ---------------------------------------------------------------------------------------------


def test_sequence_map() -> None:
    element, other, factor = Parameter(f32, None, "x"), Parameter(f32, None, "y"), Parameter(f32, None, "k")
    body = Model([ops.Mul(ops.Add(element, other), factor), ops.Shape(element)], [element, other], captures=[factor])
    sequence = Parameter(SequenceType(TensorType(f32, PartialShape([None]))), friendly_name="s")
    y, k = Parameter(f32, [1], "y"), Parameter(f32, [], "k")
    node = ops.create("SequenceMap", [sequence, y, k], {"body": body})
    assert types(node) == ["seq(f32[?])", "seq(i64[1])"]
    model = Model(node.outputs, [sequence, y, k])
    values, lengths = ops.evaluate_model(model, [[f(1), f(1, 2)], f(10), f(2)[0]])
    assert [v.tolist() for v in values] == [[22], [22, 24]]
    assert [v.tolist() for v in lengths] == [[1], [2]]


# -- nested ----------------------------------------------------------------------------------------------------


def test_a_body_in_a_body_sees_the_outer_values() -> None:
    """A loop that doubles or negates, by an If on the iteration, an outer value captured through both."""
    iteration, go_on, state = Parameter(i64, [], "i"), Parameter(boolean, [], "go"), Parameter(f32, None, "v")
    outer = Parameter(f32, None, "outer")
    chosen = conditional(ops.Less(iteration, Constant(2)), state, outer)  # type: ignore[arg-type]
    body = Model([ops.Identity(go_on), chosen], [iteration, go_on, state], captures=[outer])
    x = Parameter(f32, [1], "x")
    node = ops.create("Loop", [Constant(3), None, Constant(f(1.0)), x], {"body": body})
    assert types(node) == ["f32[1]"]
    assert ops.evaluate_model(Model([node], [x]), [f(7)])[0].tolist() == [-7]
    copy = Model([node], [x]).clone()
    assert ops.evaluate_model(copy, [f(7)])[0].tolist() == [-7]


@pytest.mark.parametrize(("trips", "condition"), [(0, True), (-2, True), (3, False)])
@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_a_loop_without_iterations_whose_body_would_not_fit(device: str, trips: int, condition: bool) -> None:
    """The body never runs, so what it would do with the state does not matter; as in onnxruntime."""

    def model(trips: int, condition: bool) -> onnx.ModelProto:
        text = f"""
            <ir_version: 8, opset_import: ["": 16]>
            g (float[2, 3] x) => (float[2, 3] y)
            <int64 n = {{{trips}}}, bool c = {{{int(condition)}}}, float[4, 1] w = {{1, 2, 3, 4}}> {{
                y = Loop <body = b (int64 i, bool go, float[2, 3] s) => (bool more, float[2, 3] u) {{
                    more = Identity(go)
                    t = MatMul(s, w)
                    u = Identity(t)
                }}> (n, c, x)
            }}"""
        return onnx.parser.parse_model(text)

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(Core().compile_model(model(trips, condition), device)({"x": x})[0], x)
    with pytest.raises(TypeInferenceError, match=r"MatMul .* must be equal"):
        Core().compile_model(model(3, True), device)
