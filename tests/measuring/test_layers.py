"""Layers: their times are the profile's, and their operations and bytes are summed over the nodes fused into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.cli.benchmark import Subject, measure_layers, measure_peak
from engine.cli.benchmark.layers import work_by_name
from engine.ir import Constant, Model, Parameter, Result, f32
from engine.testing.networks import floating_point_operations, seeded_network

Small = tuple[Path, dict[str, Any]]


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:TEMPLATE,CPU"])
def test_every_operation_is_in_one_layer(device: str, small: Small) -> None:
    path, inputs = small
    layers = measure_layers(Subject(str(path), device), inputs, runs=3)
    assert sum(layer.share for layer in layers) == pytest.approx(1)
    assert all(layer.milliseconds > 0 for layer in layers)
    products = floating_point_operations(seeded_network("squeezenet", small=True).model)
    total = sum(layer.operations or 0 for layer in layers)
    assert products <= total <= 1.05 * products + 2e6, "the rest are one operation for each element"
    assert device != "CPU" or all(layer.kernel for layer in layers)


def test_what_is_fused_belongs_to_the_layer_that_is_named() -> None:
    x = Parameter(f32, [4, 8], "x")
    product = ops.MatMul(x, Constant(np.zeros((8, 16), np.float32)), friendly_name="product")
    sums = ops.Add(product, Constant(np.zeros(16, np.float32)), friendly_name="sums")
    y = ops.Relu(sums, friendly_name="y")
    z = ops.Neg(y, friendly_name="z")
    model = Model([Result(z.output(0), "out")], [x])
    found = work_by_name(model, {name: [name] for name in ("y", "z", "unknown")})
    assert found["y"] == (2 * 4 * 8 * 16 + 2 * 4 * 16, 4 * (4 * 8 + 8 * 16 + 16 + 4 * 16))
    assert found["z"] == (4 * 16, 4 * 2 * 4 * 16)
    assert "unknown" not in found
    whole = work_by_name(model, {"all": ["product", "sums", "y", "z"]})["all"]
    assert whole[0] == found["y"][0] + found["z"][0]
    assert whole[1] < found["y"][1] + found["z"][1], "a value between two of its nodes does not leave it"


def test_the_peak_is_above_what_a_slow_device_reaches(small: Small) -> None:
    path, _ = small
    peak = measure_peak(Subject(str(path), "CPU"))
    assert peak is not None
    assert 0.1 < peak < 1e6
    assert measure_peak(Subject(str(path), "NO_SUCH_DEVICE")) is None
