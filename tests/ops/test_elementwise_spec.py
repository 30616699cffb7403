"""Specs of elementwise operators and of creation: if these fail, a device computes another function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine import ops
from engine.errors import OperatorSpecError
from engine.ir import Constant, Node, Parameter, f16, f32, u8
from engine.ops.activations import ActivationSpec, AlphaSpec, GeluSpec
from engine.ops.creation import ConstantOfShapeSpec, EyeLikeSpec, ShapeSpec
from engine.ops.elementwise import BitShiftSpec, CastSpec, IsInfSpec, ModSpec

X = Parameter(f32, [2, 3, 4], "x")
BYTES = Parameter(u8, [2], "bytes")
LENGTHS = Constant(np.array([2, 3]))


@pytest.mark.parametrize(
    ("node", "parameters"),
    [
        (ops.Elu(X), (1.0,)),
        (ops.LeakyRelu(X, alpha=0.25), (0.25,)),
        (ops.HardSigmoid(X, alpha=0.5), (0.5, 0.5)),
        (ops.Shrink(X, bias=2.0), (0.5, 2.0)),
        (ops.Selu(X, gamma=1.5), (np.float32(1.67326319217681884765625), 1.5)),
    ],
)
def test_parameters_of_activations(node: Node, parameters: tuple[float, ...]) -> None:
    assert ActivationSpec.of(node).parameters == pytest.approx(parameters, rel=1e-7)


def test_a_spec_is_of_the_class_of_its_operator() -> None:
    assert type(ActivationSpec.of(ops.Elu(X))) is AlphaSpec
    with pytest.raises(OperatorSpecError, match="GeluSpec describes Gelu, not Elu"):
        GeluSpec.of(ops.Elu(X))


def test_defaults() -> None:
    cast = CastSpec.of(ops.Cast(X, to=f16))
    assert (cast.to, cast.saturate, cast.round_mode) == (f16, True, "up")
    assert GeluSpec.of(ops.Gelu(X)).approximate == "none"
    assert not ModSpec.of(ops.Mod(BYTES, BYTES)).fmod
    assert BitShiftSpec.of(ops.BitShift(BYTES, BYTES, direction="LEFT")).direction == "LEFT"
    infinite = IsInfSpec.of(ops.IsInf(X, detect_negative=0))
    assert (infinite.detect_negative, infinite.detect_positive) == (False, True)


@pytest.mark.parametrize(
    ("bounds", "expected"), [({}, [2, 3, 4]), ({"start": -1}, [4]), ({"start": 1, "end": 9}, [3, 4]), ({"end": -3}, [])]
)
def test_shape_takes_some_lengths(bounds: dict[str, int], expected: list[int]) -> None:
    assert ShapeSpec.of(ops.Shape(X, **bounds)).at([2, 3, 4]) == expected


def test_made_tensors() -> None:
    zeros = ConstantOfShapeSpec.of(ops.ConstantOfShape(LENGTHS)).at((2, 3))
    assert zeros.dtype == np.float32
    np.testing.assert_array_equal(zeros, np.zeros((2, 3)))
    np.testing.assert_array_equal(
        ConstantOfShapeSpec.of(ops.ConstantOfShape(LENGTHS, value=np.array([7]))).at((2,)), [7, 7]
    )
    eye = EyeLikeSpec.of(ops.EyeLike(Parameter(f32, [2, 3], "m"), k=1, dtype=f16))
    assert eye.dtype is f16
    np.testing.assert_array_equal(eye.at((2, 3)), [[0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.Gelu(X, approximate="erf"), "approximate is 'erf'; allowed: none, tanh"),
        (lambda: ops.BitShift(BYTES, BYTES, direction="UP"), "direction is 'UP'; allowed: LEFT, RIGHT"),
        (lambda: ops.Cast(X, to=99), "attribute to is 99; allowed: a value of TensorProto.DataType"),
        (lambda: ops.Cast(X, to=0), "attribute to is 'undefined'"),
        (lambda: ops.Cast(X, to=f16, round_mode="even"), "round_mode is 'even'; allowed: up, down, nearest"),
        (lambda: ops.EyeLike(Parameter(f32, [2, 3], "m"), dtype=99), "attribute dtype is 99"),
        (lambda: ops.ConstantOfShape(LENGTHS, value=np.zeros(2)), "allowed: a tensor of one element"),
    ],
)
def test_bad_attributes_are_refused(build: Callable[[], Node], message: str) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        build()
