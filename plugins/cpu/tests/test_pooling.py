"""Poolings of maps that come row-major, such as images: computed as they come, with the values of any layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, f32

Array = np.ndarray[Any, np.dtype[Any]]


def kernels(model: Model) -> list[str]:
    network = Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [step.kernel for plan in network.native_plans() for step in plan.steps]  # type: ignore[attr-defined]


def pooled(x: Array, kernel: int, stride: int, pad: int, dilation: int = 1) -> Array:
    """Maxima of a padded map; a NaN is the maximum of its windows."""
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf)
    reach = dilation * (kernel - 1) + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), (2, 3))  # type: ignore[call-overload]
    return windows[:, :, ::stride, ::stride, ::dilation, ::dilation].max((-2, -1))


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "dilation"),
    [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 1), (5, 1, 2, 1), (3, 3, 0, 1), (3, 1, 2, 2), (3, 2, 2, 2)],
)
@pytest.mark.parametrize("width", [5, 16, 17, 33, 40, 67])
def test_maxima_of_rows(kernel: int, stride: int, pad: int, dilation: int, width: int) -> None:
    random = np.random.default_rng(width)
    x = random.standard_normal((2, 3, 9, width)).astype(np.float32)
    x[0, 0, 4, width // 2] = np.nan
    x[0, 1, 0, 0], x[1, 2, 8, width - 1], x[1, 0, 3] = np.inf, -np.inf, -np.inf
    parameter = Parameter(f32, x.shape, "x")
    attributes = {"strides": [stride] * 2, "pads": [pad] * 4, "dilations": [dilation] * 2}
    model = Model([ops.MaxPool(parameter, kernel_shape=[kernel] * 2, **attributes)], [parameter])
    expected = pooled(x, kernel, stride, pad, dilation)
    assert ("window_pool" in kernels(model)) == (expected.shape[-1] >= 16)  # shorter rows do not fill vectors
    (got,) = Core().compile_model(model, "CPU")({"x": x}).values()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shape", [(1, 3, 7, 7), (2, 16, 13, 13), (2, 5, 33), (3, 1, 1, 1)])
def test_global_pools_of_rows(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[0, 0].flat[-1] = np.nan
    parameter = Parameter(f32, shape, "x")
    model = Model([ops.GlobalMaxPool(parameter), ops.GlobalAveragePool(parameter)], [parameter])
    assert kernels(model) == ["reduce", "reduce"]
    axes = tuple(range(2, len(shape)))
    most, mean = Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({"x": x}).values()
    np.testing.assert_array_equal(most, x.max(axes, keepdims=True))
    # The sum of n values of about 1 is rounded n times at most.
    np.testing.assert_allclose(mean, x.mean(axes, keepdims=True), atol=np.prod(shape[2:]) * 6e-8)


def test_maps_in_blocks_are_pooled_in_blocks() -> None:
    """Reordering what a convolution writes would take longer than its pooling."""
    x = Parameter(f32, (1, 16, 32, 32), "x")
    weight = Constant(np.random.default_rng(1).standard_normal((32, 16, 3, 3)).astype(np.float32))

    def convolved(y: Any, weight: Constant) -> Any:
        return ops.Conv(y, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1])

    second = Constant(np.random.default_rng(2).standard_normal((32, 32, 3, 3)).astype(np.float32))
    y = convolved(ops.MaxPool(convolved(x, weight), kernel_shape=[2, 2], strides=[2, 2]), second)
    used = kernels(Model([ops.GlobalMaxPool(y)], [x]))
    assert used.count("max_pool_f32") == 2
    assert "window_pool" not in used
