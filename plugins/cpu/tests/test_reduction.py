"""Reductions on the device against numpy: axes, types, layouts, elements that are not finite, empty tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import Constant, ElementType, Model, Node, Parameter, PartialShape, f32

Array = np.ndarray[Any, np.dtype[Any]]


def reduction(op_type: str, x: Node, axes: Sequence[int] | None, **attributes: Any) -> Node:
    inputs = [x] if axes is None else [x, Constant(np.array(axes, np.int64))]
    return ops.create(op_type, inputs, attributes)


def run(op_type: str, x: Array, axes: Sequence[int] | None, *, fixed: bool = True, **attributes: Any) -> Array:
    shape = PartialShape(x.shape if fixed else [-1] * x.ndim)
    parameter = Parameter(ElementType.from_numpy(x.dtype), shape, "x")
    model = Model([reduction(op_type, parameter, axes, **attributes)], [parameter], name="reduction")
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    return next(iter(network({"x": x}).values()))


def test_a_long_mean_loses_no_digits() -> None:
    """Sequential summation would have an error of 1 %."""
    for shape in ((1 << 22, 1), (1 << 20, 4)):
        x = np.full(shape, 0.1, np.float32)
        got = run("ReduceMean", x, [0])
        # 64 roundings of a partial sum; adding these up rounds far less.
        np.testing.assert_allclose(got, np.full((1, shape[1]), np.float32(0.1)), rtol=64 * 6e-8)


@pytest.mark.parametrize("channels", [16, 24])
@pytest.mark.parametrize("keep", [0, 1])
def test_over_the_pixels_of_a_convolution(channels: int, keep: int) -> None:
    parameter = Parameter(f32, PartialShape([2, 3, 9, 11]), "x")
    weights = np.random.default_rng(2).standard_normal((channels, 3, 3, 3)).astype(np.float32)
    conv = ops.create("Conv", [parameter, Constant(weights)], {"kernel_shape": [3, 3]})
    pooled = reduction("ReduceMean", conv, [2, 3], keepdims=keep)
    model = Model([pooled], [parameter], name="pooled")
    feeds = {"x": np.random.default_rng(3).standard_normal((2, 3, 9, 11)).astype(np.float32)}
    got, want = (next(iter(Core().compile_model(model, d)(feeds).values())) for d in ("CPU", "TEMPLATE"))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
