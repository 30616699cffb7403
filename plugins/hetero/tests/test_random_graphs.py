"""Random graphs, divided at random: every strategy, mode and way to run gives the undivided result.

If this fails, a model of a structure that no other test has is wired wrongly, or its parts interfere with each other.
"""

from __future__ import annotations

import random
from io import BytesIO

import numpy as np
import pytest
from engine_template import TemplatePlugin

from engine import Core, ops
from engine.errors import Cancelled, DeadlineExceeded
from engine.ir import Constant, Model, Output, Parameter, Result, f32
from engine.ops import evaluate_model
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork

LIMIT = 60.0
SEEDS = range(24)
DEVICES = ("TEMPLATE", "TEMPLATE2", "TEMPLATE3")
Case = tuple[list[np.ndarray], list[np.ndarray]]


@pytest.fixture(scope="module")
def core() -> Core:
    core = Core()
    for name in DEVICES[1:]:
        core.register_plugin(name, TemplatePlugin)
    return core


def random_model(chooser: random.Random) -> Model:
    """A model of [n, 3] matrices, with shape arithmetic and all kinds of results."""
    parameters = [Parameter(f32, ["n", 3], "x0"), Parameter(f32, ["n", 3], "x1")]
    values = [parameter.output(0) for parameter in parameters]
    lengths: list[Output] = []
    for _ in range(chooser.randint(1, 30)):
        a, b = (chooser.choice(values[-6:]) for _ in range(2))
        made = a
        match chooser.randrange(9):
            case 0:
                made = ops.Neg(a).output(0)
            case 1:
                made = ops.Add(a, b).output(0)
            case 2:
                made = ops.Max(a, b, Constant(np.float32(0.25))).output(0)
            case 3:
                halves = ops.Split(ops.Concat(a, b, axis=1), Constant(np.array([3, 3])), axis=1)
                made = halves.output(chooser.randrange(2))
            case 4:
                lengths.append(ops.Shape(a).output(0))
            case 5 if lengths:
                lengths.append(ops.Add(chooser.choice(lengths), ops.Shape(b)).output(0))
            case 6 if lengths:
                twice = ops.Cast(chooser.choice(lengths), to=1)
                made = ops.Mul(a, ops.ReduceMin(twice, keepdims=0)).output(0)
            case 7:
                rows = ops.Shape(b, start=0, end=1)
                made = ops.Reshape(a, ops.Concat(rows, Constant(np.array([3])), axis=0)).output(0)
            case 8:
                made = ops.Sub(a, ops.ReduceMean(b, Constant(np.array([1])))).output(0)
        if made is not a:
            values.append(ops.Tanh(made).output(0))
    results = chooser.sample(values, min(len(values), chooser.randint(1, 4)))
    results += chooser.sample(lengths, min(len(lengths), chooser.randint(0, 2)))
    results += [results[0], Constant(np.arange(3, dtype=np.int64)).output(0)][: chooser.randint(0, 2)]
    model = Model([Result(value, f"y{index}") for index, value in enumerate(results)], parameters)
    chance, device = chooser.choice((0.2, 0.5, 1.0)), DEVICES[0]
    for node in model.ordered_nodes():
        device = chooser.choice(DEVICES) if chooser.random() < chance else device
        if node.op_type not in ("Parameter", "Constant", "Result"):
            node.rt_info["affinity"] = device
    return model


def cases_of(model: Model, seed: int) -> list[Case]:
    generator = np.random.default_rng(seed)
    given = [[generator.normal(size=(n, 3)).astype(np.float32) for _ in range(2)] for n in (2, 5, 0, 1)]
    return [(inputs, list(evaluate_model(model, inputs))) for inputs in given]


def check(request: AsyncInferRequest, case: Case, found: list[np.ndarray]) -> None:
    for value, right in zip(found, case[1], strict=True):
        assert value.dtype == right.dtype
        assert value.shape == right.shape
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)


def check_all_ways(network: ExecutableNetwork, cases: list[Case], chooser: random.Random) -> None:
    requests = [network.create_infer_request() for _ in cases]
    for request, case in zip(requests, cases, strict=True):
        check(request, case, list(request.infer(case[0]).values()))
    for turn in range(1, 4):
        turned = cases[turn:] + cases[:turn]
        for request, case in zip(requests, turned, strict=True):
            request.start_async(case[0], deadline=chooser.choice((None, None, 1e-4)))
        for request in chooser.sample(requests, chooser.randint(0, 2)):
            request.cancel()
        for request, case in zip(requests, turned, strict=True):
            try:
                request.wait(LIMIT)
            except (Cancelled, DeadlineExceeded):
                assert request.state.name == "IDLE"
                check(request, case, list(request.infer(case[0]).values()))
            else:
                check(request, case, list(request.results.values()))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_divided_at_random(core: Core, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = random.Random(seed)
    if seed % 2:  # parts of this size would start early only where they took longer
        monkeypatch.setattr("engine_hetero.network.early_starts.HOP_SECONDS", -1.0)
    model = random_model(chooser)
    cases = cases_of(model, seed)
    config = {
        "PARTITION_STRATEGY": chooser.choice(("potential", "potential", "rollback", "restriction_map")),
        "PARTITION_MODE": chooser.choice(("auto", "min_subgraphs", "connected")),
        "EXCLUSIVE_ASYNC_REQUESTS": chooser.random() < 0.2,
        "PERF_COUNT": chooser.random() < 0.2,
    }
    network = core.compile_model(model, f"HETERO:{','.join(DEVICES)}", config)
    stream = BytesIO()
    network.export_model(stream)
    for given in (network, core.import_model(stream.getvalue())):
        check_all_ways(given, cases, chooser)
