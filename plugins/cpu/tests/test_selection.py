"""ArgMax, ArgMin, Hardmax, TopK and CumSum on the device against numpy: ties, NaN, axes, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import EngineError
from engine.ir import Constant, ElementType, Model, Parameter, PartialShape

Array = np.ndarray[Any, np.dtype[Any]]


def run(op_type: str, x: Array, *more: Array, fixed: bool = True, outputs: int = 1, **attributes: Any) -> list[Array]:
    shape = PartialShape(x.shape if fixed else [-1] * x.ndim)
    parameter = Parameter(ElementType.from_numpy(x.dtype), shape, "x")
    node = ops.create(op_type, [parameter, *map(Constant, more)], attributes, num_outputs=outputs)
    model = Model(node.outputs, [parameter], name="selection")
    return list(Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})({"x": x}).values())


@pytest.mark.parametrize("fixed", [True, False])
def test_nothing_has_no_extreme(fixed: bool) -> None:
    with pytest.raises(EngineError, match=r"ArgMin .*: data has shape \[0,3\]; expected 1 element or more"):
        run("ArgMin", np.zeros((0, 3), np.float32), axis=0, fixed=fixed)
    assert run("ArgMin", np.zeros((0, 3), np.float32), axis=1, fixed=fixed)[0].shape == (0, 1)


def test_a_nan_is_the_largest() -> None:
    x = np.array([1, np.nan, -np.inf, np.inf, -np.nan, 0, -0.0], np.float32)
    k = np.array([7], np.int64)
    np.testing.assert_array_equal(run("TopK", x, k, outputs=2)[1], [1, 4, 3, 0, 5, 6, 2])
    np.testing.assert_array_equal(run("TopK", x, k, outputs=2, largest=0, sorted=0)[1], [2, 5, 6, 0, 3, 1, 4])


def test_the_ends_of_integers() -> None:
    x = np.array([0, np.iinfo(np.int64).min, np.iinfo(np.int64).max, -1], np.int64)
    for largest, want in ((1, [2, 0, 3, 1]), (0, [1, 3, 0, 2])):
        got = run("TopK", x, np.array([4], np.int64), outputs=2, largest=largest)
        np.testing.assert_array_equal(got[1], want)


def test_sums_that_wrap() -> None:
    x = np.array([np.iinfo(np.int32).max, 1, 1], np.int32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run("CumSum", x, np.array(0, np.int64))[0], np.cumsum(x, dtype=np.int32))
