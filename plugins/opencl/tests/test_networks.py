"""Whole networks on OPENCL: the answers are the CPU device's, up to rounding.

If a network fails here, users of a GPU get wrong answers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from engine import Core
from engine.passes.runtime_info import is_operation
from engine.plugin_api import ExecutableNetwork, SupportLevel
from engine.testing.models import light_answer, light_input, light_model, light_tolerance, relative_error
from engine.testing.networks import NETWORKS, rounding_tolerance, seeded_network

SIZED = ("bert_base", "vit_b16", "unet", "mobilenet_v2")
"""The networks that are also compared in their real sizes."""
LIGHT = ("densenet121", "inception_v2", "resnet50", "shufflenet", "squeezenet")
"""Networks that people published; the others are chains of the same operators, with more weights."""
QUICK = ("shufflenet", "squeezenet")
"""Of those, what runs by default."""
PROFILED = {"PERF_COUNT": True}


@dataclass(frozen=True)
class Case:
    """A model, inputs for it, and the expected outputs, up to rounding."""

    model: Any
    inputs: Mapping[str, np.ndarray]
    outputs: list[np.ndarray]
    tolerance: float


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


@cache
def seeded(name: str, *, small: bool) -> Case:
    """With the answers of the CPU device."""
    network = seeded_network(name, small=small)
    outputs = list(Core().compile_model(network.model, "CPU")(network.inputs).values())
    return Case(network.model, network.inputs, outputs, rounding_tolerance(network.model))


def light(name: str) -> Case:
    """With the answers that an independent runtime gave, which the CPU device is held to, too."""
    return Case(light_model(name), light_input(name), [light_answer(name)], light_tolerance(name))


def check(network: ExecutableNetwork, case: Case, *, in_flight: int = 8) -> None:
    """With a synchronous call, and with several concurrent requests."""
    found = [network(case.inputs)]
    requests = [network.create_infer_request() for _ in range(in_flight)]
    for request in requests:
        request.start_async(case.inputs)
    for request in requests:
        request.wait(120)
        found.append(request.results)
    for result in found:
        for value, right in zip(result.values(), case.outputs, strict=True):
            assert relative_error(value, right) <= case.tolerance


def check_native(network: ExecutableNetwork, case: Case, *parts: str) -> None:
    """Check results, that no node ran on a reference evaluator, and that each of these devices ran a part."""
    request = network.create_infer_request()
    request.infer(case.inputs)
    for value, right in zip(request.results.values(), case.outputs, strict=True):
        assert relative_error(value, right) <= case.tolerance
    assert {node.status for node in request.profiling_info.nodes} == {"native", *parts}


def check_alone(core: Core, case: Case, *, in_flight: int = 8) -> None:
    """On OPENCL, which takes all nodes, and through a blob."""
    model = core.read_model(case.model)
    answer = core.query_model(model, "OPENCL")
    assert {n.friendly_name for n in model.ordered_nodes() if is_operation(n)} <= answer.at(SupportLevel.NATIVE).keys()
    network = core.compile_model(model, "OPENCL")
    check(network, case, in_flight=in_flight)
    check_native(exported(core, network), case)


def check_beside_cpu(core: Core, case: Case) -> None:
    """A random fifth of the nodes runs on CPU; also through a blob."""
    model = core.read_model(case.model)
    chooser = random.Random(1)
    for node in model.ordered_nodes():
        if chooser.random() < 0.2:
            node.rt_info["affinity"] = "CPU"
    network = core.compile_model(model, "HETERO:OPENCL,CPU")
    assert set(network.get_metric("EXECUTION_DEVICES")) == {"OPENCL", "CPU"}
    check(network, case)
    check_native(exported(core, network), case, "OPENCL", "CPU")


def exported(core: Core, network: ExecutableNetwork) -> ExecutableNetwork:
    """The network after export and import, with profiles."""
    stream = BytesIO()
    network.export_model(stream)
    return core.import_model(stream.getvalue(), config=PROFILED)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_answer_is_that_of_cpu(core: Core, name: str) -> None:
    check_alone(core, seeded(name, small=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_beside_cpu(core: Core, name: str) -> None:
    check_beside_cpu(core, seeded(name, small=True))


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in LIGHT])
def test_real_structures(core: Core, name: str) -> None:
    check_alone(core, light(name), in_flight=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZED)
def test_real_sizes(core: Core, name: str) -> None:
    check_alone(core, seeded(name, small=False), in_flight=2)
