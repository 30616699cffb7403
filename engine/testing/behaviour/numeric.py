"""Models of one operator with answers computed with numpy, and a comparison that allows for rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from engine.startup import dataclass
from engine.testing.behaviour.cases import Array, make_model, tensor

Reals = NDArray[np.float64]

_SMALLEST: Final = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class Expected:
    """A right result.

    Attributes:
        value: the result.
        magnitude: for each element, the sum of the absolute values of its terms, which bounds its rounding errors; if
            omitted, the absolute value of the result.
    """

    value: Array
    magnitude: Reals | None = None

    def check(self, actual: Any, rtol: float, where: str) -> None:
        """Fail unless `actual` is this result within `rtol` of the magnitude; integers are equal.

        A device may flush denormal numbers to zero; NaN and infinities are where they should be.
        """
        assert isinstance(actual, np.ndarray), f"{where} is a {type(actual).__name__}, expected an array"
        assert actual.dtype == self.value.dtype, f"{where} is {actual.dtype}, expected {self.value.dtype}"
        assert actual.shape == self.value.shape, f"{where} has shape {actual.shape}, expected {self.value.shape}"
        got, want = actual.astype(np.float64), self.value.astype(np.float64)
        if self.value.dtype.kind != "f":
            is_right = actual == self.value
        else:
            size = np.abs(want) if self.magnitude is None else self.magnitude
            with np.errstate(invalid="ignore"):
                is_near = np.isfinite(want) & (np.abs(got - want) <= rtol * size + _SMALLEST)
            is_right = is_near | (got == want) | (np.isnan(got) & np.isnan(want))
        if not np.all(is_right):
            at = np.unravel_index(int(np.argmin(is_right)), is_right.shape)
            raise AssertionError(
                f"{where}: {np.size(is_right) - np.count_nonzero(is_right)} of {np.size(is_right)} elements are wrong; "
                f"the first at {tuple(int(i) for i in at)}: got {actual[at]!r}, expected {self.value[at]!r}"
            )


@dataclass(frozen=True, slots=True)
class NumericCase:
    """One operator with a constant setting of its attributes, on inputs for which the answer is known.

    Attributes:
        name: the operator and what is special: "Gemm: transB".
        op_type: the operator.
        inputs: in the operator's order.
        expected: of each output.
        attributes: of the node.
        constants: the indices of inputs that are constants of the model.
        rtol: the largest error relative to the magnitude; None is the device's.
    """

    name: str
    op_type: str
    inputs: tuple[Array | None, ...]
    expected: tuple[Expected, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    rtol: float | None = None

    def model(self) -> onnx.ModelProto:
        """The model of the node, named `node`; inputs are x0, x1..., outputs y0, y1...."""
        names = ["" if value is None else f"x{index}" for index, value in enumerate(self.inputs)]
        outputs = [f"y{index}" for index in range(len(self.expected))]
        node = helper.make_node(self.op_type, names, outputs, name="node", **self.attributes)
        return make_model(
            [node],
            [port(name, value) for name, value in self.feeds().items()],
            [port(name, each.value) for name, each in zip(outputs, self.expected, strict=True)],
            {f"x{index}": value for index in self.constants if (value := self.inputs[index]) is not None},
        )

    def feeds(self) -> dict[str, Array]:
        """The inputs that are not constants."""
        return {
            f"x{index}": value
            for index, value in enumerate(self.inputs)
            if value is not None and index not in self.constants
        }

    def __str__(self) -> str:
        return self.name


def port(name: str, value: Array) -> onnx.ValueInfoProto:
    """The declaration of an input or output with the shape and type of `value`."""
    return tensor(name, list(value.shape), helper.np_dtype_to_tensor_dtype(value.dtype))


def f32(value: Any, magnitude: Any = None) -> Expected:
    """An expected float32 result from one that was computed with float64."""
    return Expected(np.asarray(value, np.float32), None if magnitude is None else np.asarray(magnitude, np.float64))


def several_inputs(
    name: str, inputs: Sequence[Array], answer: Callable[..., Array], rtol: float | None = None, /, **attributes: Any
) -> NumericCase:
    """An operator of several inputs, none of them constant."""
    with np.errstate(all="ignore"):
        expected = Expected(np.asarray(answer(*inputs)))
    return NumericCase(name, operator_of(name), tuple(inputs), (expected,), attributes, rtol=rtol)


def operator_of(name: str) -> str:
    """The operator of a case's name."""
    return name.partition(":")[0]


def drawn(*shape: int, seed: int = 0) -> Array:
    """Random multiples of 1/16 from -2 to 2: float32 sums of hundreds of their products are exact."""
    return np.asarray(np.random.default_rng(seed).integers(-32, 33, shape) / 16, np.float32)
