"""Whole networks on OPENCL: the answers are the CPU device's, up to rounding.

If a network fails here, users of a GPU get wrong answers.
"""

from __future__ import annotations

import random
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from engine import Core
from engine.plugin_api import ExecutableNetwork, SupportLevel
from engine.testing.models import LIGHT_MODELS, light_answer, light_input, light_model, light_tolerance, relative_error
from engine.testing.networks import NETWORKS, SeededNetwork, rounding_tolerance, seeded_network

WHOLE = tuple(NETWORKS)
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # 240 to 580 MB of weights


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


@cache
def small(name: str) -> SeededNetwork:
    return seeded_network(name, small=True)


@cache
def expected(name: str) -> list[np.ndarray]:
    return list(Core().compile_model(small(name).model, "CPU")(small(name).inputs).values())


def check(network: ExecutableNetwork, name: str) -> None:
    """At once, and with eight requests in flight."""
    found = [network(small(name).inputs)]
    requests = [network.create_infer_request() for _ in range(8)]
    for request in requests:
        request.start_async(small(name).inputs)
    for request in requests:
        request.wait(60)
        found.append(request.results)
    for result in found:
        for value, right in zip(result.values(), expected(name), strict=True):
            assert relative_error(value, right) <= rounding_tolerance(small(name).model)


def exported(core: Core, network: ExecutableNetwork) -> ExecutableNetwork:
    stream = BytesIO()
    network.export_model(stream)
    return core.import_model(stream.getvalue())


@pytest.mark.parametrize("name", WHOLE)
def test_the_answer_is_that_of_cpu(core: Core, name: str) -> None:
    assert not core.query_model(small(name).model, "OPENCL").at(SupportLevel.REFUSED)
    network = core.compile_model(small(name).model, "OPENCL")
    check(network, name)
    check(exported(core, network), name)


@pytest.mark.parametrize("name", NETWORKS)
def test_with_cpu_behind_it(core: Core, name: str) -> None:
    """What it refuses runs on CPU, and a part of the rest, too."""
    model = core.read_model(small(name).model)
    chooser = random.Random(1)
    for node in model.ordered_nodes():
        if chooser.random() < 0.2:
            node.rt_info["affinity"] = "CPU"
    network = core.compile_model(model, "HETERO:OPENCL,CPU")
    assert set(network.get_metric("EXECUTION_DEVICES")) == {"OPENCL", "CPU"}
    check(network, name)
    check(exported(core, network), name)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in LIGHT_MODELS])
def test_real_models(core: Core, name: str) -> None:
    """Against the answers that an independent runtime gave."""
    network: Any = core.compile_model(light_model(name), "OPENCL")
    (value,) = network(light_input(name)).values()
    assert relative_error(value, light_answer(name)) <= light_tolerance(name)
