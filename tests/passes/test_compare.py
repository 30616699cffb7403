"""Comparison of models: every kind of difference is found and told in words; numbers are compared as numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Dimension, Model, Node, Parameter, SequenceType, bf16, boolean, c64, f16, f32, i4, i64
from engine.passes import check_equivalence, compare_models


def build(
    *,
    axis: int = 1,
    value: float = 2.0,
    name: str | None = "sum",
    op: str = "Relu",
    note: object = None,
    shape: tuple[int, ...] = (2, 3),
    output: str | None = None,
) -> Model:
    x = Parameter(f32, shape, "x")
    inner = ops.create(op, [x])
    if note is not None:
        inner.rt_info["note"] = note
    total = ops.Add(ops.Softmax(inner, axis=axis), Constant(value), friendly_name=name)
    model = Model([total], [x])
    if output is not None:
        model.results[0].friendly_name = output
    return model


def test_equal_models_are_equal_however_they_were_built() -> None:
    assert compare_models(build(), build()) == []
    assert compare_models(build(name=None), build(name=None)) == [], "names that nobody gave do not count"
    assert compare_models(build(), build(name=None)) == []
    model = build()
    assert compare_models(model, model.clone()) == []


@pytest.mark.parametrize(
    ("change", "switch", "difference"),
    [
        ({"axis": 0}, "attributes", r"attribute axis of Softmax .*: 1 against 0"),
        ({"value": 3.0}, "constants", r"values of Constant .*: 1 of 1 elements differ"),
        ({"name": "total"}, "names", r"friendly name: Add `sum` against Add `total`"),
        ({"note": "b"}, "rt_info", r"rt_info of Relu .*: \{'note': 'a'\} against \{'note': 'b'\}"),
        ({"shape": (2, 5)}, "types", r"types of .*: \[f32\[2,3\]\] against \[f32\[2,5\]\]"),
        ({"op": "Neg"}, None, r"Relu .* against Neg"),
        ({"output": "y"}, "names", r"friendly name: Result `sum` against Result `y`"),
    ],
)
def test_every_kind_of_difference_is_told_and_can_be_left_out(
    change: dict[str, object], switch: str | None, difference: str
) -> None:
    base: dict[str, object] = {"note": "a"}
    a, b = build(**base), build(**{**base, **change})  # type: ignore[arg-type]
    found = compare_models(a, b)
    assert any(re.search(difference, text) for text in found), found
    if switch is not None:
        assert compare_models(a, b, **{switch: False}) == []


def test_a_default_that_is_written_out_is_no_difference() -> None:
    x, y = Parameter(f32, [2, 3], "x"), Parameter(f32, [2, 3], "x")
    assert compare_models(Model([ops.Softmax(x)], [x]), Model([ops.Softmax(y, axis=-1)], [y])) == []


def test_sharing_is_structure_except_of_constants() -> None:
    def product(shared: bool, leaf: Callable[[Parameter], Node]) -> Model:
        x = Parameter(f32, [3], "x")
        first = leaf(x)
        return Model([ops.Mul(ops.Sub(x, first), first if shared else leaf(x))], [x])

    for a, b in ((True, False), (False, True)):
        (found,) = compare_models(product(a, ops.Relu), product(b, ops.Relu))
        assert "corresponds to both" in found
        assert compare_models(product(a, lambda x: Constant(1.0)), product(b, lambda x: Constant(1.0))) == []


def test_inputs_outputs_and_arity() -> None:
    x = Parameter(f32, [4], "x")
    one, two = Model([ops.Max(x)], [x]), Model([ops.Max(x, x)], [x])
    assert any("has 1 inputs against 2" in text for text in compare_models(one, two))
    more = Model([ops.Relu(x), ops.Neg(x)], [x])
    assert any("outputs: [" in text for text in compare_models(one, more))
    y = Parameter(f32, [4], "y")
    assert any("inputs: [x] against [x, y]" in text for text in compare_models(one, Model([ops.Max(x)], [x, y])))
    split = ops.Split(Parameter(f32, [4], "z"), num_outputs=2)
    a, b = (Model([split.output(i)], [split.input_value(0).node]) for i in (0, 1))  # type: ignore[list-item]
    assert any("reads output 0 of Split" in text for text in compare_models(a, b))
    clip, other = ops.Clip(x, None, Constant(1.0)), ops.Clip(x, Constant(1.0), Constant(1.0))
    assert any("input 1 of Clip" in text for text in compare_models(Model([clip], [x]), Model([other], [x])))


def test_bodies_are_compared() -> None:
    def branch(op: str) -> Model:
        condition = Parameter(boolean, [], "condition")
        bodies = [Model([ops.create(kind, [Constant(1.0)])]) for kind in ("Neg", op)]
        node = ops.If(condition, then_branch=bodies[0], else_branch=bodies[1], friendly_name="if")
        return Model([node], [condition])

    assert compare_models(branch("Abs"), branch("Abs")) == []
    (found,) = compare_models(branch("Abs"), branch("Relu"))
    assert found.startswith("else_branch of If `if`: Abs")


def test_constants_are_compared_bit_by_bit_and_nan_equals_itself() -> None:
    def constant(data: object) -> Model:
        return Model([ops.Identity(Constant(data))])  # type: ignore[arg-type]

    assert compare_models(constant(np.array([np.nan, 1.0])), constant(np.array([np.nan, 1.0]))) == []
    assert compare_models(constant(np.array([0.0])), constant(np.array([-0.0]))) != []
    assert compare_models(constant("a"), constant("a")) == []
    assert compare_models(constant("a"), constant("b")) != []
    (found,) = compare_models(constant(np.zeros(2, np.int8)), constant(np.zeros(3, np.int8)), types=False)
    assert "int8[2] against int8[3]" in found


def test_no_more_differences_are_listed_than_one_can_read() -> None:
    def wide(value: float) -> Model:
        x = Parameter(f32, [1], "x")
        return Model([ops.Sum(*[ops.Add(x, Constant(value + i)) for i in range(50)])], [x])

    assert len(compare_models(wide(0.0), wide(0.5))) == 20


# -- what two models compute ------------------------------------------------------------------------------


def through(op: Callable[[Parameter], Node], element_type: object = f32, shape: object = (4, 5)) -> Model:
    x = Parameter(element_type, shape, "x")  # type: ignore[arg-type]
    return Model([op(x)], [x])


def test_models_that_compute_the_same_are_equivalent_and_others_are_not() -> None:
    twice = through(lambda x: ops.Add(x, x))
    check_equivalence(twice, through(lambda x: ops.Mul(x, Constant(2.0))))
    with pytest.raises(AssertionError, match=r"output `.*`: differs by .*, with a maximum of"):
        check_equivalence(twice, through(lambda x: ops.Mul(x, Constant(2.001))))
    check_equivalence(twice, through(lambda x: ops.Mul(x, Constant(2.001))), rtol=1e-2)
    check_equivalence(twice, through(lambda x: ops.Mul(x, Constant(2.0000001))))
    with pytest.raises(AssertionError, match=r"float32\[4,5\] against float64|float32.* against float64"):
        check_equivalence(twice, through(lambda x: ops.Cast(ops.Add(x, x), to=c64.__class__.parse("f64"))))


@pytest.mark.parametrize("element_type", [f16, bf16, f32, i64, i4, boolean, c64])
def test_random_inputs_come_in_every_type(element_type: object) -> None:
    identity = through(ops.Identity, element_type)
    check_equivalence(identity, identity.clone())


def test_a_difference_shows_in_low_precision_and_in_integers() -> None:
    for element_type, scale in ((bf16, ml_dtypes.bfloat16(1.25)), (i64, np.int64(2))):
        scaled = through(lambda x, s=scale: ops.Mul(x, Constant(np.asarray(s))), element_type)  # type: ignore[misc]
        with pytest.raises(AssertionError, match=r"differ"):
            check_equivalence(through(ops.Identity, element_type), scaled)


def test_infinities_and_nan_are_values_too() -> None:
    def constant(value: float) -> Model:
        return through(lambda x: ops.Add(ops.Mul(x, Constant(0.0)), Constant(value)), shape=(3,))

    check_equivalence(constant(np.nan), constant(np.nan))
    check_equivalence(constant(np.inf), constant(np.inf))
    for a, b in ((np.inf, -np.inf), (np.nan, np.inf), (np.nan, 1.0), (1.0, np.inf)):
        with pytest.raises(AssertionError, match=r"NaN or infinity at different positions"):
            check_equivalence(constant(a), constant(b))


def test_inputs_pair_by_name_or_else_by_position() -> None:
    def difference(first: str, second: str, swapped: bool) -> Model:
        a, b = Parameter(f32, [3], first), Parameter(f32, [3], second)
        return Model([ops.Sub(a, b)], [b, a] if swapped else [a, b])

    check_equivalence(difference("a", "b", False), difference("a", "b", True))
    check_equivalence(difference("a", "b", False), difference("p", "q", False))
    with pytest.raises(AssertionError):
        check_equivalence(difference("a", "b", False), difference("p", "q", True))
    with pytest.raises(AssertionError, match=r"inputs \['a', 'b'\] against \['x'\]"):
        check_equivalence(difference("a", "b", False), through(ops.Relu))
    with pytest.raises(AssertionError, match=r"inputs \['c'\] against"):
        check_equivalence(difference("a", "b", False), difference("a", "b", False), inputs={"c": 1})


def test_unknown_lengths_are_chosen_within_their_bounds_and_alike_for_a_symbol() -> None:
    a, b = Parameter(f32, ["N", Dimension(5, 9)], "a"), Parameter(f32, ["N", Dimension(0, 1)], "b")
    model = Model([ops.Add(ops.ReduceSum(a, Constant([1])), b)], [a, b])
    check_equivalence(model, model.clone())
    check_equivalence(model, model.clone(), dims={"N": 7})
    matrix = Model([ops.MatMul(x := Parameter(f32, ["K", "K"], "x"), Constant(np.eye(7, dtype=np.float32)))], [x])
    check_equivalence(matrix, matrix.clone(), dims={"K": 7})


def test_what_has_no_random_values_is_asked_for() -> None:
    sequence = Parameter(SequenceType(Parameter(f32, [2]).type), friendly_name="s")
    model = Model([ops.SequenceLength(sequence)], [sequence])
    with pytest.raises(
        AssertionError, match=r"cannot generate a random value of type seq\(f32\[2\]\); pass one in `inputs`"
    ):
        check_equivalence(model, model.clone())
    check_equivalence(model, model.clone(), inputs={"s": [np.zeros(2, np.float32)]})
