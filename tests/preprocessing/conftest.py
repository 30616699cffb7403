"""Models to which steps are added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, ElementType, Model, Parameter, Result, f32
from engine.ops import evaluate_model
from engine.preprocessing import PrePostProcessor


def passing(element_type: ElementType = f32, shape: Any = (1, 3, 8, 8), layout: str = "NCHW") -> Model:
    """A model whose output `y` is its input `x`, so that what the steps give is seen."""
    x = Parameter(element_type, shape, "x")
    x.rt_info["layout"] = layout
    y = Result(ops.Identity(x), "y")
    y.rt_info["layout"] = layout
    return Model([y], [x], name="passing")


def convolving(channels: int = 3, size: int | str = 8, pads: int = 1) -> Model:
    """A classifier, whose convolution tells that it reads NCHW."""
    rng = np.random.default_rng(0)
    x = Parameter(f32, ["N", channels, size, size], "x")
    filters = Constant(rng.standard_normal((4, channels, 3, 3)).astype(np.float32))
    conv = ops.Conv(x, filters, Constant(rng.standard_normal(4).astype(np.float32)), pads=[pads] * 4)
    pooled = ops.Flatten(ops.GlobalAveragePool(ops.Relu(conv)))
    scores = ops.MatMul(pooled, Constant(rng.standard_normal((4, 10)).astype(np.float32)))
    return Model([Result(scores, "y")], [x], name="convolving")


Given = Callable[[PrePostProcessor], Any]


def values_after(model: Model, steps: Given, *values: Any) -> list[Any]:
    """The outputs of `model` with these steps, by the reference evaluator."""
    processor = PrePostProcessor(model)
    steps(processor)
    return evaluate_model(processor.build(), list(values))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
