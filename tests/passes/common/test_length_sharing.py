"""Lengths of inputs of a model. If these fail, layers compute the same masks again, or with a wrong length."""

from __future__ import annotations

from engine import ops
from engine.ir import Model, Parameter, f32, i64
from engine.passes.common.length_sharing import LengthSharing
from engine.testing.passes import check_pass


def test_a_length_is_that_of_the_first_input_with_its_symbol() -> None:
    ids, x = Parameter(i64, ["B", "S"], "ids"), Parameter(f32, ["B", 4, "S"], "x")
    length = ops.Shape(ops.Relu(x), start=-1, friendly_name="length")
    check_pass(
        LengthSharing,
        Model([length, ops.Neg(ids)], [ids, x]),
        expected=Model([ops.Shape(ids, start=1, end=2, friendly_name="length"), ops.Neg(ids)], [ids, x]),
        names=False,
    )


def test_other_lengths_stay() -> None:
    x = Parameter(f32, ["B", None, 4], "x")
    y = ops.Relu(x)
    whole, unknown, known = ops.Shape(y), ops.Shape(y, start=1, end=2), ops.Shape(y, start=2)
    nothing, own = ops.Shape(y, start=2, end=1), ops.Shape(x, start=0, end=1)
    check_pass(LengthSharing, Model([whole, unknown, known, nothing, own], [x]), changes=False)
