"""Whole networks divided at random: wherever the cuts are, the answer is the undivided one.

If this fails, a user who moves a node to another device gets other results.
"""

from __future__ import annotations

import random
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from engine_cpu import CpuPlugin
from engine_template import TemplatePlugin

from engine import Core
from engine.plugin_api import ExecutableNetwork, Model
from engine.testing.models import light_answer, light_input, light_model, light_tolerance, relative_error
from engine.testing.networks import NETWORKS, SeededNetwork, rounding_tolerance, seeded_network

BRANCHED = ("densenet121", "inception_v2", "resnet50", "shufflenet", "squeezenet")
"""Published networks whose branches meet again."""


@pytest.fixture(scope="module")
def core() -> Core:
    """Two registrations of each device, so that both halves compute alike."""
    core = Core()
    core.register_plugin("CPU2", CpuPlugin)
    core.register_plugin("TEMPLATE2", TemplatePlugin)
    return core


@cache
def small(name: str) -> SeededNetwork:
    return seeded_network(name, small=True)


def scattered(core: Core, model: Any, devices: tuple[str, ...], seed: int, chance: float = 0.3) -> Model:
    """The model with random affinities; neighbours are mostly on the same device."""
    read = core.read_model(model)
    chooser = random.Random(seed)
    device = devices[0]
    for node in read.ordered_nodes():
        if chooser.random() < chance:
            device = chooser.choice(devices)
        node.rt_info["affinity"] = device
    return read


def answers(network: ExecutableNetwork, inputs: Any) -> list[list[np.ndarray]]:
    """The results of a synchronous call, and of eight concurrent requests."""
    found = [list(network(inputs).values())]
    requests = [network.create_infer_request() for _ in range(8)]
    for request in requests:
        request.start_async(inputs)
    for request in requests:
        request.wait(60)
        found.append(list(request.results.values()))
    return found


def after_export(core: Core, network: ExecutableNetwork) -> ExecutableNetwork:
    stream = BytesIO()
    network.export_model(stream)
    return core.import_model(stream.getvalue(), None)


@pytest.mark.parametrize("name", NETWORKS)
def test_two_halves_of_cpu_give_the_answer_of_one(core: Core, name: str) -> None:
    """Fusions end at the cuts, so that results may differ by rounding."""
    network = small(name)
    whole = list(core.compile_model(network.model, "CPU")(network.inputs).values())
    divided = core.compile_model(scattered(core, network.model, ("CPU", "CPU2"), 1), "HETERO:CPU,CPU2")
    assert divided.get_metric("SUBGRAPH_COUNT") > 1
    for given in (divided, after_export(core, divided)):
        for answer in answers(given, network.inputs):
            for value, right in zip(answer, whole, strict=True):
                assert relative_error(value, right) <= rounding_tolerance(network.model)


@pytest.mark.parametrize("strategy", ["potential", "rollback", "restriction_map"])
@pytest.mark.parametrize("name", ["squeezenet", "bert_base", "lstm", "mobilevit"])
def test_every_strategy_gives_the_answer_of_the_whole(core: Core, name: str, strategy: str) -> None:
    """On a device that runs each node as it was imported, only the layout in memory differs at the cuts."""
    network = small(name)
    plain = {"TEMPLATE_TRANSFORMATIONS": False}
    whole = list(core.compile_model(network.model, "TEMPLATE", plain)(network.inputs).values())
    config = {"PARTITION_STRATEGY": strategy, "DEVICE_PROPERTIES": {"TEMPLATE": plain, "TEMPLATE2": plain}}
    model = scattered(core, network.model, ("TEMPLATE", "TEMPLATE2"), 2)
    divided = core.compile_model(model, "HETERO:TEMPLATE,TEMPLATE2", config)
    assert divided.get_metric("SUBGRAPH_COUNT") > 1
    for given in (divided, after_export(core, divided)):
        for answer in answers(given, network.inputs):
            for value, right in zip(answer, whole, strict=True):
                assert relative_error(value, right) <= rounding_tolerance(network.model)


@pytest.mark.parametrize("name", BRANCHED)
def test_real_models_divided_at_random(core: Core, name: str) -> None:
    """Against the answers that an independent runtime gave."""
    model = scattered(core, light_model(name), ("CPU", "CPU2", "TEMPLATE"), 3, chance=0.1)
    for node in model.ordered_nodes():  # which would take minutes on the reference evaluator
        if node.op_type in ("Conv", "Gemm", "MatMul") and node.rt_info["affinity"] == "TEMPLATE":
            node.rt_info["affinity"] = "CPU"
    divided = core.compile_model(model, "HETERO:CPU,CPU2,TEMPLATE")
    for given in (divided, after_export(core, divided)):
        (value,) = given(light_input(name)).values()
        assert relative_error(value, light_answer(name)) <= light_tolerance(name)
