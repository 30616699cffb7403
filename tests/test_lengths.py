"""Patterns of the lengths of inputs. If one fails, plans are built again for lengths that an earlier plan serves."""

from __future__ import annotations

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Dimension, Model, Parameter, Result, Variable, f32, i64
from engine.lowering import (
    InputLengths,
    LengthPattern,
    irregular_node,
    pattern_between,
    pattern_of_growth,
    pattern_of_sequences,
)
from engine.lowering.lengths import Relation

PAST, IDS, MASK, BATCH = range(4)


def decoder(bound: int | None = 100) -> Model:
    """Inputs: ids [batch, new], mask [batch, all], and past [batch, past, 8], to which the model appends."""
    ids = Parameter(i64, ["batch", "new"], "ids")
    mask = Parameter(i64, ["batch", "all"], "mask")
    past = Parameter(f32, ["batch", "past", 8], "past")
    wide = ops.Unsqueeze(ops.Cast(ids, to=f32), Constant(np.array([2])))
    rows = ops.Expand(wide, Constant(np.array([1, 1, 8])))
    model = Model([Result(mask, "kept"), Result(ops.Concat(past, rows, axis=1), "present")], [ids, mask, past])
    model.add_variable(Variable("v", "past", "present", np.zeros((1, 0, 8), np.float32), 1, bound, 0))
    return model


def test_equal_symbols_are_one_length_and_the_past_is_the_first() -> None:
    lengths = InputLengths(decoder())
    assert (lengths.has_past, lengths.bound, lengths.is_complete) == (True, 100, True)
    shapes = ((2, 3), (2, 10), (2, 7, 8))
    vector = lengths.vector(shapes)
    assert vector == (7, 2, 3, 10)
    assert lengths.shapes(shapes, (9, 1, 1, 10)) == ((1, 1), (1, 10), (1, 9, 8))
    assert lengths.vector(((2, 3), (1, 10), (2, 7, 8))) is None  # one symbol, two lengths
    assert InputLengths(decoder(None)).bound is None


def test_inputs_without_a_symbol_have_lengths_of_their_own() -> None:
    x, y = Parameter(f32, [None, Dimension(1, 8)], "x"), Parameter(f32, None, "y")
    lengths = InputLengths(Model([ops.Relu(x)], [x]))
    assert lengths.vector(((3, 3),)) == (0, 3, 3)
    assert not lengths.has_past
    assert not InputLengths(Model([ops.Relu(y)], [y])).is_complete


def test_a_growing_past_takes_the_mask_with_it() -> None:
    pattern = pattern_of_growth((7, 2, 1, 8))
    assert pattern.leading((20, 2, 1, 21)) == (20,)
    assert pattern.vector((20,)) == (20, 2, 1, 21)
    assert pattern.leading((20, 2, 1, 22)) is None
    assert pattern.leading((20, 3, 1, 21)) is None
    # No other length says that this one follows the past.
    assert pattern_of_growth((7, 2, 1, 12)).vector((8,)) == (8, 2, 1, 12)


@pytest.mark.parametrize(
    ("vector", "other", "leads"),
    [
        ((0, 1, 5, 5), (0, 1, 9, 9), (9,)),  # a prompt: the mask is over its tokens
        ((7, 1, 5, 12), (3, 1, 4, 7), (3, 4)),  # a prompt after a past
        ((7, 1, 7, 14), (3, 1, 4, 7), (3, 4)),  # as long as the past
        ((7, 3, 1, 8), (9, 4, 1, 10), (9, 4)),  # a token of each of several sequences
        ((7, 5, 5, 12), (3, 5, 4, 7), (3, 4)),  # as many sequences as tokens
        ((7, 1, 5, 5), (3, 1, 4, 4), (3, 4)),  # no mask over the past
    ],
)
def test_the_pattern_of_sequences(vector: tuple[int, ...], other: tuple[int, ...], leads: tuple[int, ...]) -> None:
    pattern = pattern_of_sequences(vector, {1})
    assert pattern is not None
    assert pattern.leading(vector) is not None
    assert pattern.leading(other) == leads
    assert pattern.vector(leads) == other


@pytest.mark.parametrize("vector", [(7, 1, 1, 8), (0, 1, 1, 1), (7, 1, 5, 11), (7, 2)])
def test_lengths_that_are_not_those_of_sequences(vector: tuple[int, ...]) -> None:
    """One token of one sequence, a length that neither is, and a model without tokens."""
    assert pattern_of_sequences(vector, {1}) is None


@pytest.mark.parametrize(
    ("first", "second", "third", "leads"),
    [
        ((0, 2, 5), (0, 2, 9), (0, 2, 6), (6,)),  # one length
        ((0, 4, 5, 4), (0, 6, 5, 6), (0, 9, 5, 9), (9,)),  # two that are equal
        ((0, 2, 5), (0, 3, 9), (0, 8, 4), (8, 4)),  # two lengths
        ((0, 5, 3), (0, 3, 5), (0, 9, 9), (9, 9)),
        ((5, 1, 3, 8), (9, 1, 4, 13), (2, 1, 7, 9), (2, 7)),  # past, and new tokens: the mask is over both
        ((5, 1, 3, 8), (5, 1, 4, 9), (6, 1, 4, 10), (6, 4)),  # also if the past did not change
        ((5, 1, 3, 8), (9, 1, 3, 12), (11, 1, 3, 14), (11,)),  # the past alone
    ],
)
def test_lengths_between_two_inferences(
    first: tuple[int, ...], second: tuple[int, ...], third: tuple[int, ...], leads: tuple[int, ...]
) -> None:
    pattern = pattern_between(first, second)
    assert pattern is not None
    for vector in (first, second):
        known = pattern.leading(vector)
        assert known is not None
        assert pattern.vector(known) == vector
    assert pattern.leading(third) == leads


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, 2, 5), (0, 2, 5)),  # nothing changed
        ((0, 2, 5), (0, 1, 5)),  # a length of 1 may be broadcast
        ((0, 2, 5), (4, 2, 6)),  # no past is another case
        ((0, 2, 5, 7), (0, 3, 9, 20)),  # three lengths that have nothing to do with each other
    ],
)
def test_no_pattern(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    assert pattern_between(first, second) is None


def test_a_fixed_pattern() -> None:
    pattern = LengthPattern((), (Relation(3), Relation(4)))
    assert pattern.leading((3, 4)) == ()
    assert pattern.leading((3, 5)) is None


def test_operations_whose_results_a_few_lengths_do_not_show() -> None:
    x = Parameter(f32, [1, "n"], "x")
    length = ops.Shape(x, start=1)
    ten, none = Constant(np.array([10])), Constant(np.array([-1]))
    for node in (ops.Mod(length, ten), ops.Equal(ops.Add(length, ten), ten), ops.BitwiseAnd(length, ten)):
        assert irregular_node(Model([ops.Add(x, ops.Cast(node, to=f32))], [x])) is node
    for node in (ops.Equal(length, none), ops.Div(length, ten), ops.Min(length, ten), ops.Greater(length, ten)):
        assert irregular_node(Model([ops.Add(x, ops.Cast(node, to=f32))], [x])) is None
    assert irregular_node(Model([ops.Mod(x, Constant(2.0), fmod=1)], [x])) is None  # of data, not of lengths
