"""Steps after an output, which extract results from scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine import ops
from engine.errors import PreprocessingError
from engine.preprocessing.geometry import MAX_LENGTH
from engine.preprocessing.step import Step, check_flag
from engine.preprocessing.tensor import Tensor, numbers
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class Softmax(Step):
    """exp(x) over its sum along an axis. Integers become f32."""

    name = "softmax"
    axis: Any = None

    def apply(self, x: Tensor) -> Tensor:
        x = x.as_real()
        return x.with_value(ops.Softmax(x.value, axis=_axis(x, self.axis)))


@dataclass(frozen=True, slots=True)
class Sigmoid(Step):
    """1 / (1 + exp(-x)). Integers become f32."""

    name = "sigmoid"

    def apply(self, x: Tensor) -> Tensor:
        x = x.as_real()
        return x.with_value(ops.Sigmoid(x.value))


@dataclass(frozen=True, slots=True)
class ArgMax(Step):
    """The index of the greatest element along an axis, i64; of equal ones, the first. The axis leaves, unless kept."""

    name = "argmax"
    axis: Any = None
    keep_axis: bool = False

    def __post_init__(self) -> None:
        check_flag("keep_axis", self.keep_axis)

    def apply(self, x: Tensor) -> Tensor:
        axis = _axis(x, self.axis)
        layout = x.layout if self.keep_axis else x.layout[:axis] + x.layout[axis + 1 :]
        found = ops.ArgMax(x.value, axis=axis, keepdims=int(self.keep_axis))
        return replace(x.with_value(found), layout=layout)


@dataclass(frozen=True, slots=True)
class TopK(Step):
    """The k greatest elements along an axis, in descending order; their indices are another output, i64."""

    name = "top_k"
    k: int
    axis: Any = None
    largest: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, (int, np.integer)) or not 1 <= self.k <= MAX_LENGTH:
            raise PreprocessingError(f"expected a whole number of 1 or more for k, got {self.k!r}")
        check_flag("largest", self.largest)

    def apply(self, x: Tensor) -> Tensor:
        """See `Step.apply`; `indices` belong to the result."""
        axis = _axis(x, self.axis)
        dim = x.value.shape[axis]
        if dim.is_static and dim.get_length() < self.k:
            raise PreprocessingError(f"k is {self.k}, but axis {axis} of {x} has {dim} elements")
        found = ops.TopK(x.value, numbers(self.k), axis=axis, largest=int(self.largest), sorted=1)
        return replace(x, value=found.output(0))


def _axis(x: Tensor, given: Any) -> int:
    """The axis of the classes: as given by number or letter, otherwise C, otherwise the last of two."""
    rank = len(x.value.shape)
    if given is None:
        if "C" in x.layout:
            return x.axis("C")
        if not x.layout and rank <= 2 and rank > 0:
            return rank - 1
        raise PreprocessingError(f"which axis of {x} is meant? Give it: axis=1, or the layout of the output")
    if isinstance(given, str):
        return x.axis(given)
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or not -rank <= given < rank:
        raise PreprocessingError(f"expected an axis of {-rank}..{rank - 1}, or its letter, for {x}, got {given!r}")
    return int(given) % rank
