"""Why a node is refused, as a program reads it: what is the same has the same cause as on CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine import Core, Model, ops
from engine.ir import Node, Parameter, f32
from engine.plugin_api import SupportLevel


def parameter(name: str, axes: int) -> Parameter:
    return Parameter(f32, [1, 2, *[4] * axes], name)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ops.Conv(parameter("x", 4), parameter("w", 4)),
        lambda: ops.ConvTranspose(parameter("x", 4), Parameter(f32, [2, 1, 2, 2, 2, 2], "w")),
        lambda: ops.MaxPool(parameter("x", 4), kernel_shape=[2] * 4),
        lambda: ops.AveragePool(parameter("x", 4), kernel_shape=[2] * 4),
    ],
    ids=["Conv", "ConvTranspose", "MaxPool", "AveragePool"],
)
@pytest.mark.parametrize("device", ["OPENCL", "CPU"])
def test_four_spatial_dimensions_are_refused_for_the_rank(build: Callable[[], Node], device: str) -> None:
    node = build()
    parameters = [value.node for value in node.input_values if value is not None]
    node.friendly_name = "asked"
    model = Model([node], [each for each in parameters if isinstance(each, Parameter)])
    support = Core().query_model(model, device)["asked"]
    if device == "CPU" and "Conv" in node.op_type:
        assert support.level is SupportLevel.NATIVE  # its convolutions have kernels for any number of axes up to four
    else:
        assert support.cause == "rank", support
