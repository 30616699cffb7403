"""Partial shapes: what is known may be read, what is not raises, and merging never loses or invents lengths."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelError
from engine.ir import (
    UNKNOWN,
    Dimension,
    ElementType,
    OptionalType,
    PartialShape,
    SequenceType,
    TensorType,
    ValueType,
    boolean,
    f32,
    i4,
    merge_types,
    string,
)
from engine.ir.element_type import ALL

dimensions = st.one_of(
    st.integers(0, 5).map(Dimension),
    st.tuples(st.integers(0, 3), st.integers(3, 6)).map(lambda b: Dimension(*b)),
    st.integers(0, 3).map(Dimension.at_least),
    st.just(Dimension()),
    st.sampled_from("NM").map(lambda s: Dimension(symbol=s)),
)
shapes = st.one_of(st.just(PartialShape.dynamic()), st.lists(dimensions, max_size=3).map(PartialShape))


def test_rank_and_single_dimensions_are_readable_where_the_shape_is_dynamic() -> None:
    shape = PartialShape([1, "N", None, Dimension(1, 8)])
    assert shape.rank.get_length() == 4
    assert shape[0].get_length() == 1
    assert shape[1].is_dynamic
    assert shape[1].symbol == "N"
    assert (shape[3].min, shape[3].max) == (1, 8)
    with pytest.raises(ModelError, match=r"\[1,N,\?,1..8\] is dynamic"):
        shape.get_shape()
    with pytest.raises(ModelError, match="has no single length"):
        shape[2].get_length()
    with pytest.raises(ModelError, match="dimension 4"):
        shape[4]


def test_unknown_rank_raises_where_dimensions_are_asked_for() -> None:
    shape = PartialShape.dynamic()
    assert shape.rank.is_dynamic
    with pytest.raises(ModelError, match="unknown rank"):
        len(shape)


def test_equal_symbols_take_equal_lengths() -> None:
    shape = PartialShape(["N", "N", 3])
    assert shape.accepts((2, 2, 3))
    assert not shape.accepts((2, 4, 3))
    assert not shape.accepts((2, 2))


def without_symbols(shape: PartialShape) -> PartialShape:
    if shape.rank.is_dynamic:
        return shape
    return PartialShape([Dimension() if dim.symbol else dim for dim in shape])


@given(shapes)
def test_text_form_reads_back(shape: PartialShape) -> None:
    if shape.rank.is_static:
        assert PartialShape([str(dim) for dim in shape]) == shape


@given(shapes, shapes, st.lists(st.integers(0, 7), max_size=3).map(tuple))
def test_merge_takes_exactly_what_both_take(a: PartialShape, b: PartialShape, lengths: tuple[int, ...]) -> None:
    # symbols tie dimensions of one shape together; here only the intervals are of interest
    a, b = (without_symbols(shape) for shape in (a, b))
    both = a.accepts(lengths) and b.accepts(lengths)
    if not a.compatible(b):
        assert not both
        with pytest.raises(ModelError):
            a.merge(b)
    else:
        assert a.merge(b).accepts(lengths) == both


def test_equality_with_plain_lengths_and_hash_agree() -> None:
    assert PartialShape([2, 3]) == (2, 3)
    assert hash(PartialShape([2, 3])) == hash((2, 3))
    assert PartialShape([2, None]) != (2, 3)


def test_a_known_length_is_the_same_with_and_without_a_symbol() -> None:
    assert Dimension(3, symbol="N") == Dimension(3) == 3
    assert hash(Dimension(3, symbol="N")) == hash(Dimension(3))
    assert Dimension(symbol="N") != Dimension()


@pytest.mark.parametrize("bad", ["[1,2]", "NC", 5, [2.7], [[1]], [True], [1j], [-2], [Dimension]], ids=repr)
def test_what_is_no_shape_is_refused_not_guessed(bad: Any) -> None:
    with pytest.raises(ModelError, match="dimension"):
        PartialShape(bad)
    assert PartialShape([1, 2]) != bad


@pytest.mark.parametrize("bad", [{"low": "a"}, {"low": 1.5}, {"symbol": 3}], ids=repr)
def test_what_is_no_dimension_is_refused(bad: Any) -> None:
    with pytest.raises(ModelError, match="dimension"):
        Dimension(**bad)


def test_text_of_thousands_of_digits_is_a_symbol() -> None:
    # Python refuses to read it as a number; a model file may hold it as a dimension's name.
    for text in ("1" * 5000, "1.." + "1" * 5000):
        assert PartialShape([text])[0].symbol == text


@pytest.mark.parametrize("bad", [(-2, None), (3, 2)])
def test_empty_intervals_are_refused(bad: tuple[int, int | None]) -> None:
    with pytest.raises(ModelError):
        Dimension(*bad)
    with pytest.raises(ModelError):
        Dimension.at_least(-2)


@pytest.mark.parametrize("bad", ["no such dtype", "M8[s]", "V4"])
def test_a_dtype_without_element_type_is_named(bad: str) -> None:
    with pytest.raises(ModelError, match="dtype"):
        ElementType.from_numpy(bad)


@pytest.mark.parametrize("element_type", [t for t in ALL if t.name not in ("undefined", "string")], ids=str)
def test_every_element_type_maps_there_and_back(element_type: ElementType) -> None:
    assert ElementType.from_onnx(element_type.onnx) is element_type
    assert ElementType.from_numpy(element_type.numpy) is element_type
    assert ElementType.parse(element_type.name) is element_type
    bits = int(re.findall(r"\d+", element_type.name)[0]) if element_type is not boolean else 8
    assert element_type.byte_size(80) == 10 * bits, "a file would be read from other places"
    assert element_type.numpy.itemsize * 8 == max(8, bits)


def test_packed_and_odd_types() -> None:
    assert i4.byte_size(3) == 2
    assert ElementType.from_numpy("<U5") is string
    assert ElementType.from_numpy(">f4") is f32
    with pytest.raises(ModelError, match="datetime64"):
        ElementType.from_numpy("datetime64[s]")
    with pytest.raises(ModelError, match="unknown; known: undefined, f32"):
        ElementType.parse("float")


def tensor(*lengths: int | str | None) -> TensorType:
    return TensorType(f32, PartialShape(lengths))


@pytest.mark.parametrize(
    ("declared", "inferred", "expected"),
    [
        (tensor(2, None), tensor(None, 3), tensor(2, 3)),
        (tensor(2), UNKNOWN, tensor(2)),
        (SequenceType(tensor(2)), SequenceType(), SequenceType(tensor(2))),
        (SequenceType(), SequenceType(tensor(2)), SequenceType(tensor(2))),
        (OptionalType(tensor(2)), OptionalType(), OptionalType(tensor(2))),
        (OptionalType(), OptionalType(tensor(2)), OptionalType(tensor(2))),
        (SequenceType(tensor(2)), OptionalType(), OptionalType()),
        (OptionalType(tensor(2)), SequenceType(), SequenceType()),
        (SequenceType(tensor(2)), tensor(3), tensor(3)),
        (tensor(2), SequenceType(), SequenceType()),
    ],
    ids=str,
)
def test_of_two_types_of_a_value_the_one_that_says_more_is_kept(
    declared: ValueType, inferred: ValueType, expected: ValueType
) -> None:
    assert merge_types(declared, inferred) == expected
