"""Whole networks on the kernels that GPUs get: here on a device that poses as one, with memory of its own.

If this fails, a machine with a GPU gives wrong answers where one without gives right ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_opencl.devices.device import device_of

from engine import Core
from engine.testing.models import light_answer, light_input, light_model, light_tolerance, relative_error
from engine.testing.networks import NETWORKS, rounding_tolerance, seeded_network


@pytest.fixture(autouse=True)
def posing(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="gpu"))
    monkeypatch.setattr(device, "memory_kind", "staged")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_answer_is_that_of_cpu(name: str) -> None:
    small = seeded_network(name, small=True)
    expected = Core().compile_model(small.model, "CPU")(small.inputs)
    found = Core().compile_model(small.model, "OPENCL")(small.inputs)
    for value, right in zip(found.values(), expected.values(), strict=True):
        assert relative_error(value, right) <= rounding_tolerance(small.model)


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "resnet50"])
def test_real_models(name: str) -> None:
    """Lengths that small networks do not reach. Against the answers that an independent runtime gave."""
    network: Any = Core().compile_model(light_model(name), "OPENCL")
    (value,) = network(light_input(name)).values()
    assert relative_error(value, light_answer(name)) <= light_tolerance(name)
