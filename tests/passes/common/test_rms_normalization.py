"""RMS normalization is recognised where the operator computes the same, and only there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, ElementType, Model, Node, Parameter, bf16, f16, f32, f64
from engine.passes.common.rms_normalization_fusion import RMSNormalizationFusion

Apply = Callable[..., Counter[str]]
SHAPE = (2, 3, 4)


def number(value: float, element_type: ElementType = f32) -> Constant:
    return Constant(np.array(value, element_type.numpy))


def normalized(
    *,
    data: ElementType = f32,
    wide: bool = False,
    narrow: ElementType | None = None,
    axes: tuple[int, ...] = (-1,),
    keepdims: int = 1,
    square: Callable[[Node], Node] = lambda x: ops.Mul(x, x),
    epsilon: Any = 1e-3,
    divide: Callable[[Node, Node], Node] = ops.Div,
    scale: tuple[int, ...] = (4,),
    scale_type: ElementType | None = None,
    other: bool = False,
) -> Model:
    x = Parameter(data, SHAPE, "x")
    inner: Node = ops.Cast(x, to=f32) if wide else x
    computed = f32 if wide else data
    mean = ops.ReduceMean(square(inner), Constant(np.array(axes, np.int64)), keepdims=keepdims)
    root = ops.Sqrt(ops.Add(mean, Constant(np.array(epsilon, computed.numpy))))
    y = divide(inner, root)
    if narrow is not None:
        y = ops.Cast(y, to=narrow)
    weights = np.linspace(0.5, 2.0, int(np.prod(scale))).reshape(scale)
    result = ops.Mul(y, Constant(weights.astype((scale_type or narrow or data).numpy)))
    return Model([result, root] if other else [result], [x])


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"square": lambda x: ops.Pow(x, number(2))},
        {"divide": lambda x, root: ops.Mul(x, ops.Reciprocal(root))},
        {"divide": lambda x, root: ops.Mul(ops.Div(number(1), root), x)},
        {"axes": (2,)},
        {"axes": (1, 2), "scale": (3, 4)},
        {"axes": (-1, 0, 1), "scale": (2, 3, 4)},
        {"data": f16},
        {"data": bf16, "wide": True, "narrow": bf16},
        {"data": f16, "wide": True, "narrow": f16},
        {"epsilon": [1e-3]},
    ],
    ids=lambda form: ",".join(form) or "plain",
)
def test_what_the_operator_computes_is_recognised(form: dict[str, Any], apply: Apply) -> None:
    rtol = None if form.get("data", f32) is f32 else 2e-2
    assert apply(normalized(**form), RMSNormalizationFusion, rtol=rtol) == {"RMSNormalization": 1}


@pytest.mark.parametrize(
    "form",
    [
        {"data": f64},
        {"square": lambda x: ops.Pow(x, number(3))},
        {"square": lambda x: ops.Mul(x, ops.Relu(x))},
        {"divide": lambda x, root: ops.Mul(ops.Div(number(2), root), x)},
        {"divide": lambda x, root: ops.Div(root, x)},
        {"divide": lambda x, root: ops.Div(ops.Relu(x), root)},
        {"axes": (0,), "scale": (2, 1, 1)},
        {"axes": (0, 2), "scale": (4,)},
        {
            "axes": (1,),
            "keepdims": 0,
            "scale": (4,),
            "divide": lambda x, root: ops.Div(x, ops.Unsqueeze(root, number_of(1))),
        },
        {"epsilon": [1e-3, 1e-2, 1e-1, 1.0]},
        {"scale": (3, 1)},
        {"scale": (2, 3, 4)},
        {"data": f16, "wide": True, "scale_type": f32},
        {"data": f16, "wide": True, "narrow": bf16},
        {"narrow": f16},
        {"other": True},
    ],
    ids=lambda form: ",".join(form) or "plain",
)
def test_what_it_does_not_compute_stays(form: dict[str, Any], apply: Apply) -> None:
    assert "RMSNormalization" not in apply(normalized(**form), RMSNormalizationFusion, modified=False)


def number_of(axis: int) -> Constant:
    return Constant(np.array([axis], np.int64))
