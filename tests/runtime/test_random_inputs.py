"""Random inputs: the same everywhere for one seed, valid for the network, and never of a guessed shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import InputError
from engine.ir import OptionalType, PartialShape, SequenceType, TensorType, boolean, f16, f32, i4, i64, string, u2
from engine.ir.element_type import ALL, undefined
from engine.runtime import Port, Signature
from engine.runtime.random_inputs import Ranges, random_inputs

PINNED = (-0.6863034, -0.5364341)


def port(name: str, *dims: Any, element_type: Any = f32) -> Port:
    return Port(name, TensorType(element_type, PartialShape(dims)))


@pytest.mark.parametrize("element_type", [t for t in ALL if t is not undefined], ids=lambda t: t.name)
def test_every_element_type_gets_values_that_a_request_admits(element_type: Any) -> None:
    ports = [port("x", 64, 2, element_type=element_type)]
    given = random_inputs(ports)
    ((admitted,), _) = Signature(ports, [], "net").bind([None], given)
    if element_type is string:
        assert {type(item) for item in admitted.flat} == {str}
    else:
        numbers = admitted.astype(np.complex128 if element_type.is_complex else np.float64)
        assert np.isfinite(numbers).all()
        if element_type.is_integral:
            assert set(np.unique(numbers)) == {0, 1}
    assert len({str(item) for item in admitted.flat}) > 1, "constant inputs hide errors"


def test_values_depend_on_seed_and_name_alone() -> None:
    x, y = port("x", 2, 3), port("y", 2, 3)
    first, again, other = random_inputs([x, y]), random_inputs([y, x]), random_inputs([x], seed=1)
    assert (first["x"] == again["x"]).all()
    assert (first["x"] != first["y"]).any()
    assert (first["x"] != other["x"]).any()
    # A reference that was saved on one machine is good on another.
    np.testing.assert_allclose(first["x"].ravel()[:2], PINNED, rtol=1e-6)
    many = random_inputs([port("x", 10_000)])["x"]
    assert abs(many.mean()) < 0.05
    assert abs(many.var() - 1) < 0.05


def test_numbers_stay_within_the_ranges_that_are_asked_for() -> None:
    types = {"real": f32, "half": f16, "long": i64, "small": i4, "tiny": u2, "flag": boolean}
    ports = [port(name, 1000, element_type=each) for name, each in types.items()]
    given = random_inputs(ports, ranges=Ranges(reals=(0.25, 1.0), integers=(0, 3)))
    for name in ("real", "half"):
        assert given[name].min() >= 0.25
        assert given[name].max() <= 1
        assert abs(given[name].astype(np.float64).mean() - 0.625) < 0.03
    found = {name: set(np.unique(given[name].astype(int)).tolist()) for name in ("long", "small", "tiny", "flag")}
    assert found == {"long": {0, 1, 2, 3}, "small": {0, 1, 2, 3}, "tiny": {0, 1}, "flag": {0, 1}}
    ones = random_inputs(ports, ranges=Ranges(integers=(1, 1)))
    assert all((ones[name].astype(int) == 1).all() for name in found)


def test_given_shapes_and_the_symbols_they_settle() -> None:
    ports = [port("mask", "batch", "length"), port("ids", "batch", "length", 3), port("fixed", 2)]
    given = random_inputs(ports, shapes={"ids": (4, 7, 3)})
    assert {name: value.shape for name, value in given.items()} == {"mask": (4, 7), "ids": (4, 7, 3), "fixed": (2,)}


def test_optionals_are_absent() -> None:
    assert random_inputs([Port("o", OptionalType(TensorType(f32, PartialShape([2]))))]) == {"o": None}


@pytest.mark.parametrize(
    ("ports", "shapes", "message"),
    [
        ([port("x", "N", 3, None)], {}, r"input `x` is f32\[N,3,\?\]: pass its shape, such as x=1,3,1"),
        ([Port("x", TensorType(f32, PartialShape.dynamic()))], {}, "shape is not known"),
        ([port("x", "N", 3)], {"x": (2, 4)}, r"input `x` is f32\[N,3\] and cannot have the shape \(2, 4\)"),
        ([port("x", 2)], {"y": (2,)}, "'y', which is not an input; inputs: x"),
        ([port("x", "N"), port("y", "N")], {"x": (2,), "y": (3,)}, "dimension N"),
        ([port("x", "N", "N")], {"x": (2, 3)}, "cannot have the shape"),
        ([Port("s", SequenceType(TensorType(f32, PartialShape([1]))))], {}, r"`s` is seq\(f32\[1\]\)"),
    ],
)
def test_what_cannot_be_made_up_is_refused(ports: list[Port], shapes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        random_inputs(ports, shapes=shapes)
