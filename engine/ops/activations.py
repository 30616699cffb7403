"""Activations: facts and specs; evaluation where `onnx.reference` is wrong, slow or has none."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ir import Node
from engine.ops.elementwise import unary
from engine.ops.precision import truncated, widened
from engine.ops.registry import evaluates
from engine.ops.spec import OperatorSpec, check_choice, evaluates_with_spec, specifies
from engine.ops.tensors import Array
from engine.startup import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSpec(OperatorSpec):
    """Base of activations with numeric attributes, such as `alpha` of Elu."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[float, ...]:
        """The parameters, in the order of ONNX's documentation."""


@specifies("Celu", "Elu", "LeakyRelu", "Swish", "ThresholdedRelu")
@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaSpec(ActivationSpec):
    """The activations with the one parameter alpha."""

    alpha: float

    @property
    def parameters(self) -> tuple[float, ...]:
        return (self.alpha,)


@specifies("Selu")
@dataclass(frozen=True, slots=True, kw_only=True)
class SeluSpec(ActivationSpec):
    """gamma x for positive x, otherwise gamma alpha (e^x - 1)."""

    alpha: float
    gamma: float

    @property
    def parameters(self) -> tuple[float, ...]:
        return self.alpha, self.gamma


@specifies("HardSigmoid")
@dataclass(frozen=True, slots=True, kw_only=True)
class HardSigmoidSpec(ActivationSpec):
    """alpha x + beta, limited to 0..1."""

    alpha: float
    beta: float

    @property
    def parameters(self) -> tuple[float, ...]:
        return self.alpha, self.beta


@specifies("Shrink")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkSpec(ActivationSpec):
    """0 from -lambd to lambd; other values move towards 0 by bias."""

    lambd: float
    bias: float

    @property
    def parameters(self) -> tuple[float, ...]:
        return self.lambd, self.bias


@specifies("Gelu")
@dataclass(frozen=True, slots=True, kw_only=True)
class GeluSpec(OperatorSpec):
    """x times the cumulative normal distribution of x, or with "tanh" its approximation."""

    approximate: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "approximate", given["approximate"], ("none", "tanh"))


unary("Celu", keeps_zero=True)
unary("Elu", keeps_zero=True, activation=("alpha",))
unary("Gelu", keeps_zero=True, activation=())
unary("HardSigmoid", monotonic=True, range=(0.0, 1.0), activation=("alpha", "beta"))
unary("HardSwish", keeps_zero=True, activation=())
unary("LeakyRelu", keeps_zero=True, activation=("alpha",))
unary("Mish", keeps_zero=True, activation=())
unary("Relu", monotonic=True, keeps_zero=True, range=(0.0, math.inf), activation=())
unary("Selu", keeps_zero=True)
unary("Shrink")
unary("Sigmoid", monotonic=True, range=(0.0, 1.0), activation=())
unary("Softplus", monotonic=True, range=(0.0, math.inf))
unary("Softsign", monotonic=True, keeps_zero=True, range=(-1.0, 1.0))
unary("Swish", keeps_zero=True, activation=("alpha",))
unary("Tanh", monotonic=True, keeps_zero=True, range=(-1.0, 1.0), activation=())
unary("ThresholdedRelu", keeps_zero=True)


# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969): erf up to 0.46875,
# erfc up to 4 and above, each as a quotient of polynomials, highest power first.
_ERF_P = (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
          3.20937758913846947e3)  # fmt: skip
_ERF_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_MID_P = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
          2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
          1.23033935479799725e3)  # fmt: skip
_MID_Q = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
          3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)  # fmt: skip
_FAR_P = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
          1.60837851487422766e-2, 6.58749161529837803e-4)  # fmt: skip
_FAR_Q = (1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2,
          2.33520497626869185e-3)  # fmt: skip


@evaluates("Erf")
def erf(x: Array) -> Array:
    """The error function (ONNX Erf-13), to within two units in the last place of f64."""
    wide = x.astype(np.float64, copy=False)
    near, complement = _error_functions(wide)
    result: Array = np.where(np.abs(wide) <= 0.46875, near, np.copysign(1.0 - complement, wide))
    return np.where(np.isnan(wide), wide, result).astype(x.dtype)


def _complement_of_erf(x: Array) -> Array:
    """1 - erf(x) in f64; small results are as exact as large ones."""
    near, complement = _error_functions(x)
    result: Array = np.where(np.abs(x) <= 0.46875, 1.0 - near, np.where(x < 0, 2.0 - complement, complement))
    return np.where(np.isnan(x), x, result)


def _error_functions(x: Array) -> tuple[Array, Array]:
    """erf of x, for |x| up to 0.46875, and 1 - erf of |x|, for larger ones."""
    size = np.abs(x)
    square = x * x
    near = x * (np.polyval(_ERF_P, square) / np.polyval(_ERF_Q, square))
    middle = np.exp(-square) * (np.polyval(_MID_P, size) / np.polyval(_MID_Q, size))
    inverse = 1.0 / np.maximum(square, 1.0)
    tail = inverse * (np.polyval(_FAR_P, inverse) / np.polyval(_FAR_Q, inverse))
    far = np.exp(-square) * (1 / np.sqrt(np.pi) - tail) / np.maximum(size, 1.0)
    complement = np.where(size <= 4.0, middle, far)
    # Above 27 the powers overflow before exp(-x^2) reduces them to 0.
    return near, np.where(size > 27.0, 0.0, complement)


# `onnx.reference` suppresses warnings for these by changing the process's filters, which is not thread-safe.


@evaluates("Pow")
def power(x: Array, exponent: Array) -> Array:
    """x to the power of the exponent, in x's type (ONNX Pow-15).

    Of integers, negative powers are cut off to 0, 1 or -1. A real power is computed in f64 and converted as by Cast.
    """
    shape = np.broadcast_shapes(x.shape, exponent.shape)
    if x.dtype.kind in "iu" and exponent.dtype.kind not in "iu":
        return truncated(np.power(x.astype(np.float64), exponent.astype(np.float64)), x.dtype)
    if x.dtype.kind in "iu" and exponent.dtype.kind == "i" and (exponent < 0).any():
        inverse = np.where(np.abs(x) == 1, np.where(exponent % 2 == 1, x, 1), 0)
        return np.where(exponent < 0, inverse, np.power(x, np.maximum(exponent, 0))).astype(x.dtype)
    if exponent.size == 1 and exponent.item() == 0.5:
        # For a scalar 0.5 numpy takes the square root, whose results for -inf and -0 are different.
        x, exponent = x.reshape(-1), np.full(x.size, exponent.item(), exponent.dtype)
    result: Array = np.power(x, exponent)
    return result.astype(x.dtype).reshape(shape)


@evaluates("Relu")
def relu(x: Array) -> Array:
    """0 for values below 0, others as they are, NaN and -0 too (ONNX Relu-14)."""
    return np.where(x < x.dtype.type(0), x.dtype.type(0), x)


@evaluates("Sqrt")
def square_root(x: Array) -> Array:
    """The square root; NaN for negative values (ONNX Sqrt-13)."""
    result: Array = np.sqrt(x)
    return result.astype(x.dtype)


@evaluates("Mean")
def mean(*values: Array) -> Array:
    """The mean of tensors, which all broadcast to a common shape (ONNX Mean-13)."""
    total = _total(values)
    result: Array = total / total.dtype.type(len(values))
    return result.astype(values[0].dtype)


@evaluates("Sum")
def sum_of_tensors(*values: Array) -> Array:
    """The sum of tensors, which all broadcast to a common shape (ONNX Sum-13), rounded to f16 or bf16 once."""
    return _total(values).astype(values[0].dtype)


def _total(values: Sequence[Array]) -> Array:
    total = widened(values[0])
    for value in values[1:]:
        total = total + widened(value)
    return total


@evaluates_with_spec("Gelu")
def gelu(spec: GeluSpec, x: Array) -> Array:
    """x times the cumulative normal distribution of x (ONNX Gelu-20), or its approximation by tanh.

    For negative x, ONNX's formulas add 1 to values near -1; these formulas are equivalent, and also exact there.
    """
    wide = x.astype(np.float64, copy=False)
    if spec.approximate == "tanh":
        # (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)), which overflows to a quotient of 0, the right result.
        inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
        result: Array = wide / (1 + np.exp(-2 * inner))
    else:
        result = 0.5 * wide * _complement_of_erf(wide * -np.sqrt(0.5))
    return result.astype(x.dtype)


@evaluates("PRelu")
def prelu(x: Array, slope: Array) -> Array:
    """x if it is not negative, otherwise slope times x (ONNX PRelu-16)."""
    result: Array = np.where(x < 0, x * slope, x).astype(x.dtype, copy=False)
    return result


@evaluates("Softsign")
def softsign(x: Array) -> Array:
    """x / (1 + |x|) (ONNX Softsign-22); `onnx.reference` fails for scalars."""
    result: Array = x / (np.abs(x) + x.dtype.type(1))
    return result


@evaluates("HardSwish")
def hard_swish(x: Array) -> Array:
    """x times HardSigmoid of x with alpha 1/6 and beta 1/2 (ONNX HardSwish-22)."""
    wide = widened(x)
    return (wide * np.clip(wide / 6 + 0.5, 0, 1)).astype(x.dtype)


@evaluates("Mish")
def mish(x: Array) -> Array:
    """x times tanh of softplus of x (ONNX Mish-22)."""
    wide = widened(x)
    return (wide * np.tanh(np.logaddexp(wide, 0))).astype(x.dtype)
