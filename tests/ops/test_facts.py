"""Facts that operators declare hold for what they compute, and a wrong one is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.errors import ModelError
from engine.ir import Constant, Node, Parameter, f32
from engine.ops import axes as declared_axes
from engine.ops import traits as declared
from engine.ops.axes import axes_of
from engine.ops.extension import Operator, define
from engine.ops.traits import Growth, Moves, Traits, declare, operators_with, traits_of
from engine.testing.facts import check_facts, check_operator, checkable, operators_without_facts

DECLARING = [op for op in ops.all_ops() if checkable(op)]
UNCHECKED = {("QLinearConv", "product"), ("QLinearMatMul", "product"), ("Dropout", "axes")}
"""Quantized products round, and Dropout is random."""


def codes(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 200, shape).astype(np.uint8)


SCALE, ZERO = np.float32(0.1), np.uint8(100)
FURTHER: dict[str, tuple[list[np.ndarray | np.generic], dict[str, Any]]] = {
    "QLinearConv": ([codes(2, 3, 5, 5), SCALE, ZERO, codes(4, 3, 2, 2), SCALE, ZERO, SCALE, ZERO], {}),
    "QLinearMatMul": ([codes(2, 3, 4), SCALE, ZERO, codes(2, 4, 5), SCALE, ZERO, SCALE, ZERO], {}),
    "MaxRoiPool": (
        [
            np.random.default_rng(2).normal(size=(2, 3, 6, 6)).astype(np.float32),
            np.array([[0, 0, 0, 3, 3], [1, 1, 1, 5, 5], [0, 2, 1, 4, 5]], np.float32),
        ],
        {"pooled_shape": [2, 2]},
    ),
}
"""Nodes of operators that have no cases."""


@pytest.mark.parametrize("op", DECLARING, ids=str)
def test_declared_facts_hold(op: ops.OpDef) -> None:
    """Each is compared with the evaluation of at least one node that could refute it."""
    checked = check_operator(op)
    if op.name in FURTHER:
        inputs, attributes = FURTHER[op.name]
        given = [np.asarray(each) for each in inputs]
        checked.update(check_facts(ops.create(op.name, [Constant(each) for each in given], attributes), given))
    assert checkable(op) - checked == {name for operator, name in UNCHECKED if operator == op.name}


def test_random_operators_are_those_with_a_seed() -> None:
    with_seed = {op.name for op in ops.all_ops() if "seed" in op.attributes}
    assert set(operators_with(lambda traits: traits.random)) == with_seed


def test_operators_without_facts_are_named() -> None:
    """Of these, passes and devices assume nothing."""
    without = operators_without_facts()
    assert {"NonMaxSuppression", "ai.onnx.ml.SVMClassifier"} <= set(without)
    assert not {"Relu", "Conv", "ReduceSum", "Transpose"} & set(without)
    assert axes_of(Node("Swirl", [Parameter(f32, [2], "x")], domain="com.example")) is None


WRONG: dict[str, tuple[str, Traits, str]] = {
    "pointwise": ("CumSum", Traits(pointwise=True), r"element \(.*\) of output 0 changed from"),
    "shape": ("Shape", Traits(pointwise=True), "has shape"),
    "broadcasts": ("PRelu", Traits(data=2, pointwise=True, broadcasts=True, range=(0.0, 1.0)), "range="),
    "view": ("Transpose", Traits(moves=Moves.VIEW), "give"),
    "permutation": ("Slice", Traits(moves=Moves.PERMUTATION), "elements are in the results"),
    "selection": ("Tile", Traits(moves=Moves.SELECTION), "twice"),
    "fills": ("Pad", Traits(moves=Moves.REPETITION), "of the elements 1..[0-9]+, it gives"),
    "product": ("Pow", Traits(product=(0, 1)), "not affine"),
    "commutative": ("Sub", Traits(commutative=True), "swapped"),
    "shape only": ("Relu", Traits(shape_only=True), "same shape"),
    "monotonic": ("Cos", Traits(monotonic=True), "rise and fall"),
    "zero": ("Cos", Traits(keeps_zero=True), "zeros give 1.0"),
    "range": ("Exp", Traits(range=(0.0, 1.0)), "it gives"),
    "growth": ("ReduceLogSumExp", Traits(growth=Growth.SHRINKS), "data of 1e.30 gives"),
    "reduces": ("ArgMax", Traits(reduces=True), "reverse order"),
}


@pytest.mark.parametrize(("op_type", "traits", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_fact_is_refuted_by_an_example(
    op_type: str, traits: Traits, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(declared._TRAITS, ("", op_type), traits)
    with pytest.raises(AssertionError, match=rf"{op_type} `.*` declares .*{message}"):
        check_operator(ops.get_op(op_type))


WRONG_AXES = {
    "combined": ("Softmax", "... -> ...", "axis -1, but slice"),
    "moved": ("DepthToSpace", "N C H W -> N C' H W", "axis (H|W), but (slice|it has lengths)"),
    "counted": ("CumSum", "... -> ...", "axis -., but slice"),
    "places": ("EyeLike", "rows columns -> rows columns", "axis (rows|columns), but slices in the order"),
}


@pytest.mark.parametrize(("op_type", "axes", "message"), WRONG_AXES.values(), ids=WRONG_AXES)
def test_a_wrong_axis_is_refuted_by_slices(
    op_type: str, axes: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(declared_axes._AXES, ("", op_type), axes)
    with pytest.raises(AssertionError, match=rf"{op_type} `.*` declares {message}"):
        check_operator(ops.get_op(op_type))


def test_an_operator_of_an_extension_promises_the_same_way() -> None:
    """Right declarations stand, and passes rely on them; wrong ones are shown with a counterexample."""

    def scaled(x: np.ndarray) -> np.ndarray:
        return np.asarray(x / x.sum(axis=0, keepdims=True), np.float32)

    def operator(name: str, **facts: Any) -> Operator:
        return Operator(name=name, domain="test.facts", inputs=["x"], infer=lambda i, a: i[0], evaluate=scaled, **facts)

    right = operator("Right", axes="N C -> N' C", traits=Traits(vectorized=True))
    wrong = operator("Wrong", axes="N C -> N C")
    random = operator("Noise", is_deterministic=False)
    define([right, wrong, random], "facts 1")
    x, values = Parameter(f32, [3, 4], "x"), np.random.default_rng(0).uniform(1, 2, (3, 4)).astype(np.float32)
    nodes = [ops.create(name, [x], domain="test.facts") for name in ("Right", "Wrong", "Noise")]
    assert check_facts(nodes[0], [values]) == ["axes"]
    with pytest.raises(AssertionError, match=r"Wrong `.*` declares axis N, but slice 1 of output 0 changed with other"):
        check_facts(nodes[1], [values])
    assert traits_of(nodes[2]).random


def test_an_operator_is_declared_once() -> None:
    declare("Ceil", pointwise=True, monotonic=True, keeps_zero=True)  # the same
    with pytest.raises(ModelError, match=r"Ceil: its traits are declared twice"):
        declare("Ceil", pointwise=True)


def test_an_unknown_operator_promises_nothing() -> None:
    x = Parameter(f32, [2], "x")
    assert traits_of(Node("Relu", [x], domain="com.example")) == Traits()
    assert check_facts(ops.Det(Parameter(f32, [2, 2], "m")), [np.eye(2, dtype=np.float32)]) == []
