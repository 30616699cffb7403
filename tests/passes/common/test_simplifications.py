"""Simplifications of a graph that do not change its results. If it fails, results change, or graphs stay large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import (
    Constant,
    ElementType,
    Model,
    Node,
    Parameter,
    TensorType,
    boolean,
    f16,
    f32,
    i8,
    i32,
    i64,
    u32,
)
from engine.ops import evaluate_model
from engine.passes import Manager
from engine.passes.common.common_subexpression import CommonSubexpressionSharing
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.dead_code_elimination import DeadCodeElimination
from engine.passes.common.divide_to_multiply import DivideToMultiply
from engine.passes.common.expand_elimination import ExpandElimination
from engine.passes.common.identity_elimination import IdentityElimination
from engine.passes.common.mask_simplification import MaskSimplification
from engine.passes.common.reshape_merge import ReshapeMerge
from engine.passes.common.shape_simplification import ShapeSimplification

Apply = Callable[..., Counter[str]]


def ints(*values: int) -> Constant:
    return Constant(np.array(values, np.int64))


def relu(x: Node, make: Callable[[Node], Node]) -> Model:
    """x -> Relu -> what is made -> Neg: neither end is a network input or output."""
    parameter = x if isinstance(x, Parameter) else None
    assert parameter is not None
    return Model([ops.Neg(make(ops.Relu(parameter)))], [parameter])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ops.Identity(x),
        lambda x: ops.Dropout(x),
        lambda x: ops.Cast(x, to=f32),
        lambda x: ops.Reshape(x, ints(2, 3, 4)),
        lambda x: ops.Expand(x, ints(3, 1)),
        lambda x: ops.Resize(x, None, None, ints(2, 3, 4), mode="linear"),
        lambda x: ops.Resize(x, None, Constant(np.ones(3, "f")), mode="cubic"),
        lambda x: ops.Transpose(x, perm=[0, 1, 2]),
        lambda x: ops.Slice(x, ints(0), ints(9), ints(1)),
        lambda x: ops.Pad(x, ints(0, 0, 0, 0, 0, 0)),
        lambda x: ops.Concat(x, axis=1),
        lambda x: ops.Sum(x),
        lambda x: ops.Sub(x, Constant(0.0)),
        lambda x: ops.Mul(Constant([1.0]), x),
        lambda x: ops.Div(x, Constant(1.0)),
        lambda x: ops.Pow(x, Constant(1.0)),
    ],
)
def test_identities_leave(make: Callable[[Node], Node], apply: Apply) -> None:
    assert apply(relu(Parameter(f32, [2, 3, 4], "x"), make), IdentityElimination) == {"Relu": 1, "Neg": 1}


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ops.Add(x, Constant(0.0)),  # -0.0 would become 0.0
        lambda x: ops.Mul(x, Constant(np.ones([1, 1, 1, 1], "f"))),  # one dimension more
        lambda x: ops.Mul(x, Constant(np.ones([5, 1, 1, 1], "f"))),
        lambda x: ops.Expand(x, ints(2, 2, 3, 4)),
        lambda x: ops.Slice(x, ints(-1), ints(-9), ints(1), ints(-1)),
        lambda x: ops.Reshape(x, ints(4, 3, 2)),
        lambda x: ops.Resize(x, None, Constant(np.array([1, 1, 1.1], "f")), mode="linear"),
        lambda x: ops.Cast(x, to=i32),
        lambda x: ops.Pow(x, Constant(2.0)),
    ],
)
def test_what_changes_anything_stays(make: Callable[[Node], Node], apply: Apply) -> None:
    x = Parameter(f32, [2, 3, 4], "x")
    model = Model([ops.Abs(make(ops.Relu(x)))], [x])
    assert sum(apply(model, IdentityElimination, modified=False).values()) == 3


def test_integer_sums_with_zero_leave(apply: Apply) -> None:
    x = Parameter(i64, ["N"], "x")
    model = Model([ops.Neg(ops.Add(ops.Abs(x), ints(0)))], [x])
    # A sum of vectors [N] and [1] has the length N, even if N is zero.
    assert apply(model, IdentityElimination) == {"Abs": 1, "Neg": 1}


def test_a_network_output_keeps_its_name(apply: Apply) -> None:
    x = Parameter(f32, [2], "x")
    model = Model([ops.Identity(ops.Relu(x, friendly_name="inner"), friendly_name="y")], [x])
    assert apply(model, IdentityElimination) == {"Relu": 1}
    assert model.node("y").op_type == "Relu"
    direct = Model([ops.Identity(x, friendly_name="y")], [x])
    assert apply(direct, IdentityElimination, modified=False) == {"Identity": 1}


def test_equal_operations_and_constants_are_shared(apply: Apply) -> None:
    x = Parameter(f32, [2, 4], "x")
    branches = [ops.LeakyRelu(ops.Add(x, Constant([1.0, 2.0, 3.0, 4.0])), alpha=0.5) for _ in range(3)]
    other = ops.LeakyRelu(ops.Add(x, Constant([1.0, 2.0, 3.0, 4.0])), alpha=0.25)
    model = Model([ops.Sum(*branches, other)], [x])
    assert apply(model, CommonSubexpressionSharing) == {"Add": 1, "LeakyRelu": 2, "Sum": 1}
    assert sum(isinstance(node, Constant) for node in model.ordered_nodes()) == 1


def test_a_reader_is_shared_that_was_the_only_one_when_it_was_visited(apply: Apply) -> None:
    x = Parameter(f32, [2, 4], "x")
    first = ops.Neg(ops.Neg(ops.Abs(x)))  # visited before the second Abs is joined to the first
    model = Model([ops.Relu(first), ops.Sigmoid(ops.Neg(ops.Neg(ops.Abs(x))))], [x])
    assert apply(model, CommonSubexpressionSharing) == {"Abs": 1, "Neg": 2, "Relu": 1, "Sigmoid": 1}


def test_what_looks_equal_and_is_not_stays(apply: Apply) -> None:
    x = Parameter(f32, [2], "x")
    negative_zero = ops.Mul(x, Constant(-0.0))
    model = Model([ops.Sub(ops.Mul(x, Constant(0.0)), negative_zero)], [x])
    assert apply(model, CommonSubexpressionSharing, modified=False)["Mul"] == 2
    dropped = [ops.RandomUniformLike(x) for _ in range(2)]
    random = Model([ops.Sub(*dropped)], [x])
    manager = Manager(checked=True)
    manager.register_pass(CommonSubexpressionSharing)
    assert manager.run_passes(random) is False
    named = Model([ops.Relu(x, friendly_name="a"), ops.Relu(x, friendly_name="b")], [x])
    assert apply(named, CommonSubexpressionSharing, modified=False)["Relu"] == 2


def test_placement_keeps_equal_operations_apart(apply: Apply) -> None:
    x = Parameter(f32, [2], "x")
    first, second = ops.Relu(x), ops.Relu(x)
    first.rt_info["affinity"], second.rt_info["affinity"] = "CPU", "GPU"
    assert apply(Model([ops.Add(first, second)], [x]), CommonSubexpressionSharing, modified=False)["Relu"] == 2


# -- dead code --------------------------------------------------------------------------------------------


def test_outputs_that_nobody_reads_leave(apply: Apply) -> None:
    x = Parameter(f32, [2, 4], "x")
    norm = ops.LayerNormalization(x, Constant(np.ones(4, "f")), num_outputs=3, friendly_name="norm")
    model = Model([norm.output(0)], [x])
    apply(model, DeadCodeElimination)
    assert model.node("norm").num_outputs == 1
    inverse = ops.LayerNormalization(x, Constant(np.ones(4, "f")), num_outputs=3)
    assert apply(Model([inverse.output(0), inverse.output(2)], [x]), DeadCodeElimination, modified=False)
    split = ops.Split(x, axis=1, num_outputs=2)
    assert apply(Model([split.output(0)], [x]), DeadCodeElimination, modified=False)["Split"] == 1


def branch(outer: TensorType, factor: float, count: int = 2) -> Model:
    inner = Parameter(outer.element_type, outer.shape, "inner")
    unused = Parameter(outer.element_type, outer.shape, "unused")
    results = [ops.Mul(inner, Constant(factor + i)) for i in range(count - 1)]
    return Model([*results, ops.Exp(unused)], captures=[inner, unused], name="branch")


def test_results_of_branches_and_captures_that_nobody_reads_leave(apply: Apply) -> None:
    x, y, chosen = Parameter(f32, [2], "x"), Parameter(f32, [2], "y"), Parameter(boolean, [], "chosen")
    bodies = {"then_branch": branch(x.type, 1.0), "else_branch": branch(x.type, 3.0)}
    heavy = ops.Sin(y)
    node = ops.create("If", [chosen, x, heavy, x, heavy], bodies, num_outputs=2, friendly_name="choice")
    model = Model([node.output(0)], [x, y, chosen])
    operators = apply(model, DeadCodeElimination)
    assert operators == {"If": 1}
    new = model.node("choice")
    assert [len(body.captures) for body in new.bodies.values()] == [1, 1]
    assert new.num_inputs == 3


def test_what_a_loop_collects_and_nobody_reads_leaves(apply: Apply) -> None:
    turn, go, state = Parameter(i64, [], "turn"), Parameter(boolean, [], "go"), Parameter(f32, [2], "state")
    step = ops.Add(state, Constant(1.0))
    body = Model([ops.Identity(go), step, ops.Exp(step), ops.Neg(step)], [turn, go, state])
    x = Parameter(f32, [2], "x")
    node = ops.create("Loop", [Constant(3), None, x], {"body": body}, num_outputs=3, friendly_name="loop")
    model = Model([node.output(0), node.output(2)], [x])
    apply(model, DeadCodeElimination)
    assert model.node("loop").num_outputs == 2
    assert "Exp" not in {node.op_type for node in model.node("loop").bodies["body"].ordered_nodes()}


# -- masks ------------------------------------------------------------------------------------------------


def test_masks_that_decide_nothing_leave(apply: Apply) -> None:
    x, mask = Parameter(f32, [1, 1, 3, 3], "x"), Parameter(boolean, [1, 1, 3, 3], "mask")
    true, false = Constant(np.ones([3, 3], bool)), Constant(np.zeros([1], bool))
    kept = ops.Or(ops.And(true, ops.Not(mask)), false)
    chosen = ops.Where(true, ops.Relu(x), Constant(-1.0))
    other = ops.Where(false, Constant(-1.0), ops.Exp(x))
    model = Model([ops.Where(kept, ops.Neg(chosen), ops.Neg(other))], [x, mask])
    assert apply(model, MaskSimplification) == {"Not": 1, "Relu": 1, "Exp": 1, "Neg": 2, "Where": 1}


def test_masks_that_broadcast_stay(apply: Apply) -> None:
    mask = Parameter(boolean, [1, 1, 1, 3], "mask")
    model = Model([ops.Not(ops.And(Constant(np.ones([3, 3], bool)), ops.Not(mask)))], [mask])
    assert apply(model, MaskSimplification, modified=False)["And"] == 1


def test_zeros_before_a_softmax_leave_and_elsewhere_stay(apply: Apply) -> None:
    x = Parameter(f32, [2, 3], "x")
    zeros = Constant(np.zeros([1, 3], "f"))
    assert apply(Model([ops.Softmax(ops.Add(ops.Neg(x), zeros))], [x]), MaskSimplification)["Add"] == 0
    model = Model([ops.Exp(ops.Add(ops.Neg(x), zeros))], [x])
    assert apply(model, MaskSimplification, modified=False)["Add"] == 1


# -- shapes -----------------------------------------------------------------------------------------------


def test_a_known_length_of_an_unknown_shape_is_a_constant(apply: Apply) -> None:
    x = Parameter(f32, ["N", "S", 8], "x")
    width = ops.Gather(ops.Shape(x), ints(2))
    model = Model([ops.Mul(x, ops.Cast(ops.Div(width, ints(2)), to=f32))], [x])
    assert apply(model, ShapeSimplification) == {"Cast": 1, "Mul": 1}


def test_the_target_of_a_reshape_becomes_a_constant(apply: Apply) -> None:
    x = Parameter(f32, ["N", "S", 8], "x")
    shape = ops.Shape(x)
    lengths = [ops.Unsqueeze(ops.Gather(shape, Constant(axis)), ints(0)) for axis in (0, 1)]
    target = ops.Concat(*lengths, ints(2), ints(-1), axis=0)
    model = Model([ops.Reshape(x, target, friendly_name="y")], [x])
    assert apply(model, ShapeSimplification) == {"Reshape": 1}
    assert str(model.node("y").output(0).type) == "f32[N,S,2,4]"


def test_lengths_that_change_places_stay(apply: Apply) -> None:
    x = Parameter(f32, ["N", "S"], "x")
    shape = ops.Shape(x)
    target = ops.Concat(ops.Gather(shape, ints(1)), ops.Gather(shape, ints(0)), axis=0)
    model = Model([ops.Reshape(x, target, friendly_name="y")], [x])
    assert apply(model, ShapeSimplification)["Concat"] == 1
    assert str(model.node("y").output(0).type) == "f32[S,N]"  # that much can be stated


def test_an_expand_to_the_own_shape_leaves(apply: Apply) -> None:
    x = Parameter(f32, ["N", 4], "x")
    model = Model([ops.Neg(ops.Expand(ops.Exp(x), ops.Shape(x)))], [x])
    assert apply(model, ShapeSimplification) == {"Exp": 1, "Neg": 1}


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [((-1, -9, -1), [4, 3, 2]), ((2, -(2**63), -2), [4, 2]), ((0, 2**63 - 1, 2), [2, 4]), ((1, 3, 1), [3, 4])],
)
def test_slices_of_shapes_go_as_slices_of_tensors_do(
    bounds: tuple[int, int, int], expected: list[int], apply: Apply
) -> None:
    x = Parameter(f32, [2, 3, 4, "N"], "x")
    known = ops.Slice(ops.Shape(x), ints(0), ints(3))
    start, end, step = (ints(bound) for bound in bounds)
    model = Model([ops.Neg(ops.Slice(known, start, end, ints(0), step))], [x])
    apply(model, ShapeSimplification)
    (negated,) = (node for node in model.ordered_nodes() if node.op_type == "Neg")
    constant = negated.input_value(0).node
    assert isinstance(constant, Constant)
    assert constant.data.tolist() == expected


def test_a_slice_of_a_shape_may_omit_its_axes(apply: Apply) -> None:
    x = Parameter(f32, [2, "N", 4], "x")
    every_other = ops.Slice(ops.Shape(x), ints(0), ints(3), None, ints(2))
    model = Model([ops.Neg(every_other)], [x])
    assert apply(model, ShapeSimplification) == {"Neg": 1}


@pytest.mark.parametrize(
    ("narrow", "value"), [(i8, 44), (boolean, 1), (f16, 2304)], ids=["wrapped", "truth", "rounded"]
)
def test_lengths_that_a_type_cannot_hold_are_not_followed(narrow: ElementType, value: int, apply: Apply) -> None:
    x = Parameter(f32, ["N", 2305 if narrow is f16 else 300], "x")
    width = ops.Gather(ops.Shape(x), ints(1))
    model = Model([ops.Cast(ops.Cast(width, to=narrow), to=i64)], [x])
    apply(model, ShapeSimplification, ConstantFolding)
    (answer,) = evaluate_model(model, [np.zeros([1, x.type.shape[1].get_length()], np.float32)])
    assert answer == value


def test_arithmetic_on_lengths_that_wraps_is_not_followed(apply: Apply) -> None:
    x = Parameter(f32, ["N", 300], "x")
    width = ops.Cast(ops.Gather(ops.Shape(x), ints(1)), to=u32)
    model = Model([ops.Sub(width, Constant(np.array([301], np.uint32)))], [x])
    assert apply(model, ShapeSimplification) == {"Sub": 1}


def test_an_expand_has_the_lengths_of_its_target(apply: Apply) -> None:
    x, y = Parameter(f32, ["N", 1, 1], "x"), Parameter(f32, ["N", "S"], "y")
    target = ops.Concat(ops.Shape(y), ints(3), axis=0)
    model = Model([ops.Expand(x, target, friendly_name="z")], [x, y])
    apply(model, ShapeSimplification)
    assert str(model.node("z").output(0).type) == "f32[N,S,3]"


def embedded(symbol: str = "S") -> Model:
    """The embeddings of the first positions of a table of 16, as exporters write them, added to the embeddings of the
    tokens.
    """
    x, table = Parameter(f32, ["N", symbol, 8], "x"), Parameter(f32, [1, 16, 8], "table")
    length = ops.Slice(ops.Shape(x), ints(1), ints(2))
    first = ops.Slice(table, ints(0), length, ints(1), friendly_name="first")
    return Model([ops.Add(x, first, friendly_name="sum")], [x, table])


def test_the_first_elements_of_an_axis_are_as_many_as_those_they_are_added_to(apply: Apply) -> None:
    model = embedded()
    apply(model, ShapeSimplification)
    assert str(model.node("first").output(0).type) == "f32[1,min(16,S):0..16,8]"
    assert str(model.node("sum").output(0).type) == "f32[N,S,8]"
    for length in (0, 1, 2, 16):
        (result,) = evaluate_model(model, [np.ones([2, length, 8], np.float32), np.ones([1, 16, 8], np.float32)])
        assert result.shape == (2, length, 8)


def test_a_symbol_of_an_input_is_not_taken_for_a_minimum(apply: Apply) -> None:
    model = embedded()
    other = Parameter(f32, ["min(16,S)"], "other")
    model = Model([*model.results, ops.Neg(other)], [*model.parameters, other])
    apply(model, ShapeSimplification, modified=False)
    assert str(model.node("first").output(0).type) == "f32[1,0..16,8]"


def test_a_length_that_two_unrelated_ones_broadcast_to_is_unknown(apply: Apply) -> None:
    x, y = Parameter(f32, ["N", 1], "x"), Parameter(f32, ["M", "S"], "y")
    model = Model([ops.Expand(x, ops.Shape(y), friendly_name="z")], [x, y])
    apply(model, ShapeSimplification)
    assert str(model.node("z").output(0).type) == "f32[?,S]"


# -- expansions -------------------------------------------------------------------------------------------


def test_operators_that_broadcast_read_what_is_expanded(apply: Apply) -> None:
    """The gate of a squeeze and excitation block, as exporters write it."""
    x, gate = Parameter(f32, [2, 3, 4, 5], "x"), Parameter(f32, [2, 3, 1, 1], "gate")
    model = Model([ops.Mul(x, ops.Expand(ops.Sigmoid(gate), ints(2, 3, 4, 5)))], [x, gate])
    assert apply(model, ExpandElimination) == {"Sigmoid": 1, "Mul": 1}
    condition = Parameter(boolean, [5], "condition")
    model = Model([ops.Where(ops.Expand(condition, ints(2, 3, 4, 5)), x, ops.Neg(x))], [x, condition])
    assert apply(model, ExpandElimination) == {"Neg": 1, "Where": 1}


def test_an_expansion_that_determines_a_shape_stays(apply: Apply) -> None:
    x, y = Parameter(f32, [4, 1], "x"), Parameter(f32, [1, 5], "y")
    wide = ops.Expand(x, ints(4, 5))
    for reader in (ops.Add(wide, Constant(1.0)), ops.Mul(wide, wide), ops.MatMul(wide, ops.Transpose(y))):
        inputs = [x, y] if reader.op_type == "MatMul" else [x]
        assert apply(Model([reader], inputs), ExpandElimination, modified=False)["Expand"] == 1
    both = Model([ops.Add(wide, ops.Expand(ops.Neg(x), ints(4, 5)))], [x])
    assert apply(both, ExpandElimination)["Expand"] == 1
    rows = Parameter(f32, ["N", 5], "rows")
    unknown = Model([ops.Mul(rows, ops.Expand(y, ops.Shape(rows)))], [rows, y])
    assert apply(unknown, ExpandElimination, modified=False)["Expand"] == 1


def test_other_readers_of_an_expansion_keep_it(apply: Apply) -> None:
    x, y = Parameter(f32, [4, 1], "x"), Parameter(f32, [4, 5], "y")
    wide = ops.Expand(x, ints(4, 5))
    model = Model([ops.Sub(y, wide), ops.Softmax(wide, axis=0)], [x, y])
    assert apply(model, ExpandElimination) == {"Sub": 1, "Expand": 1, "Softmax": 1}


# -- reshapes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outer",
    [
        lambda x: ops.Reshape(x, ints(2, 12)),
        lambda x: ops.Squeeze(x),
        lambda x: ops.Flatten(x, axis=2),
        lambda x: ops.Unsqueeze(x, ints(0)),
    ],
)
def test_of_reshapes_in_a_row_one_remains(outer: Callable[[Node], Node], apply: Apply) -> None:
    x = Parameter(f32, [2, 3, 4], "x")
    model = Model([outer(ops.Unsqueeze(ops.Reshape(x, ints(4, 6)), ints(1)))], [x])
    assert apply(model, ReshapeMerge) == {"Reshape": 1}


def test_reshapes_of_unknown_lengths_keep_their_places(apply: Apply) -> None:
    x = Parameter(f32, ["N", "S", 8], "x")
    split = ops.Reshape(x, ints(0, 0, 2, 4))
    assert apply(Model([ops.Reshape(split, ints(0, 0, 8))], [x]), ReshapeMerge) == {"Reshape": 1}
    joined = ops.Reshape(Parameter(f32, ["A", "B"], "y"), ints(-1))
    again = Model([ops.Unsqueeze(joined, ints(0))], [joined.input_value(0).node])  # type: ignore[list-item]
    assert sum(apply(again, ReshapeMerge).values()) == 1


def test_reshapes_that_refuse_an_input_when_they_run_stay(apply: Apply) -> None:
    """x of 7 elements does not fit [-1, 6]; y of 2 rows cannot be squeezed: one Reshape to [-1] would take both."""
    x, y = Parameter(f32, ["N"], "x"), Parameter(f32, ["A", "B"], "y")
    flat = Model([ops.Reshape(ops.Reshape(x, ints(-1, 6)), ints(-1))], [x])
    twelve = {"x": np.arange(12, dtype=np.float32)}
    assert apply(flat, ReshapeMerge, modified=False, inputs=twelve)["Reshape"] == 2
    row = Model([ops.Reshape(ops.Squeeze(y, ints(0)), ints(-1))], [y])
    one_row = {"y": np.ones((1, 4), np.float32)}
    assert apply(row, ReshapeMerge, modified=False, inputs=one_row) == {"Squeeze": 1, "Reshape": 1}
    sixes = Parameter(f32, ["N", 6], "x")
    divisible = Model([ops.Reshape(ops.Reshape(sixes, ints(-1, 3)), ints(-1, 2))], [sixes])
    assert apply(divisible, ReshapeMerge) == {"Reshape": 1}


def test_a_shape_that_is_read_in_between_stays(apply: Apply) -> None:
    x = Parameter(f32, [2, 6], "x")
    middle = ops.Reshape(x, ints(3, 4))
    model = Model([ops.Exp(middle), ops.Reshape(middle, ints(12))], [x])
    assert apply(model, ReshapeMerge, modified=False)["Reshape"] == 2


def test_division_is_decomposed_for_reals_only(apply: Apply) -> None:
    x, y = Parameter(f32, [3], "x"), Parameter(f32, [3], "y")
    assert apply(Model([ops.Div(x, Constant(4.0))], [x]), DivideToMultiply) == {"Mul": 1}
    assert apply(Model([ops.Div(x, y)], [x, y]), DivideToMultiply) == {"Pow": 1, "Mul": 1}
    n: Any = Parameter(i64, [3], "n")
    assert apply(Model([ops.Div(n, ints(2))], [n]), DivideToMultiply, modified=False) == {"Div": 1}
