"""Facts that operators declare hold for what they compute, and a wrong one is found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine import ops
from engine.errors import ModelError
from engine.ir import Node, Parameter, f32
from engine.ops import traits as declared
from engine.ops.traits import Moves, Traits, declare, operators_with, traits_of
from engine.testing.facts import check_facts, check_operator, checkable, operators_without_facts

DECLARING = [op for op in ops.all_ops() if op.traits != Traits()]
UNCHECKED = {("QLinearConv", "product"), ("QLinearMatMul", "product")}
"""Quantized products round."""


@pytest.mark.parametrize("op", DECLARING, ids=str)
def test_declared_facts_hold(op: ops.OpDef) -> None:
    """Each is compared with the evaluation of at least one node that could refute it."""
    checked = check_operator(op)
    assert checkable(op.traits) - checked == {name for operator, name in UNCHECKED if operator == op.name}


def test_random_operators_are_those_with_a_seed() -> None:
    with_seed = {op.name for op in ops.all_ops() if "seed" in op.attributes}
    assert set(operators_with(lambda traits: traits.random)) == with_seed


def test_operators_without_facts_are_named() -> None:
    """Of these, passes and devices assume nothing."""
    without = operators_without_facts()
    assert {"NonMaxSuppression", "ai.onnx.ml.SVMClassifier"} <= set(without)
    assert not {"Relu", "Conv", "ReduceSum", "Transpose"} & set(without)


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
    "reduces": ("ArgMax", Traits(reduces=True), "reverse order"),
}


@pytest.mark.parametrize(("op_type", "traits", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_fact_is_refuted_by_an_example(
    op_type: str, traits: Traits, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(declared._TRAITS, ("", op_type), traits)
    with pytest.raises(AssertionError, match=rf"{op_type} `.*` declares .*{message}"):
        check_operator(ops.get_op(op_type))


def test_an_operator_is_declared_once() -> None:
    declare("Relu", pointwise=True, monotonic=True, keeps_zero=True, range=(0.0, math.inf))  # the same
    with pytest.raises(ModelError, match=r"Relu: its traits are declared twice"):
        declare("Relu", pointwise=True)


def test_an_unknown_operator_promises_nothing() -> None:
    x = Parameter(f32, [2], "x")
    assert traits_of(Node("Relu", [x], domain="com.example")) == Traits()
    assert check_facts(ops.Det(Parameter(f32, [2, 2], "m")), [np.eye(2, dtype=np.float32)]) == []
