"""HETERO gives a device only what fits into its memory budget."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_hetero.affinity.budget import NodeMemory, within_budgets
from engine_hetero.affinity.costs.cost_model import default_costs
from engine_hetero.affinity.measured_placing import place_by_cost
from engine_hetero.query.canonical import canonical_model
from engine_hetero.query.claims import REFUSED, Claims
from engine_hetero.query.model_graph import ModelGraph
from engine_hetero.wiring.certificate import Certificate
from onnx import helper

from engine import Core
from engine.errors import BlobCorruptError, MemoryBudgetError, PropertyError

WIDTH, DEPTH = 96, 8
LAYER = WIDTH * WIDTH * 4
X = np.linspace(-1, 1, 16 * WIDTH, dtype=np.float32).reshape(16, WIDTH)


@pytest.fixture
def core() -> Core:
    return Core()


def layers(rows: Any = 16, widths: tuple[int, ...] = (WIDTH,) * (DEPTH + 1)) -> onnx.ModelProto:
    """Products, each with a Tanh."""
    random = np.random.default_rng(1)
    nodes, weights, value = [], [], "x"
    for number, (inner, outer) in enumerate(pairwise(widths)):
        matrix = random.standard_normal((inner, outer)).astype(np.float32) / np.sqrt(np.float32(inner))
        weights.append(onnx.numpy_helper.from_array(matrix, f"w{number}"))
        nodes += [
            helper.make_node("MatMul", [value, f"w{number}"], [f"p{number}"], f"product{number}"),
            helper.make_node("Tanh", [f"p{number}"], [value := f"y{number}"], f"tanh{number}"),
        ]
    x, y = (helper.make_tensor_value_info(n, 1, [rows, w]) for n, w in (("x", widths[0]), (value, widths[-1])))
    return helper.make_model(helper.make_graph(nodes, "layers", [x], [y], weights))


def compiled(core: Core, model: Any, budgets: dict[str, Any], devices: str = "TEMPLATE,CPU", **config: Any) -> Any:
    own = {device: {"MEMORY_BUDGET": budget} for device, budget in budgets.items()}
    return core.compile_model(model, f"HETERO:{devices}", {"CACHE_DIR": "", "DEVICE_PROPERTIES": own, **config})


def taken(network: Any, device: str) -> int:
    """The bytes that the parts on a device take."""
    parts, devices = network.parts().values(), network.get_metric("SUBGRAPH_DEVICES")
    return sum(part.memory_forecast().peak for part, name in zip(parts, devices, strict=True) if name == device)


@pytest.mark.parametrize("placement", ["priority", "measured"])
@pytest.mark.parametrize("fits", [1, 3, 6])
def test_a_device_gets_what_fits_and_another_one_the_rest(
    placement: str, fits: int, core: Core, tmp_path: Path
) -> None:
    budget = fits * LAYER + 40_000
    config = {"PLACEMENT": placement, "MEASURE_SECONDS": 0.0}
    network = compiled(core, layers(), {"TEMPLATE": budget}, **config)
    assert taken(network, "TEMPLATE") <= budget
    if placement == "priority":
        assert set(network.get_metric("SUBGRAPH_DEVICES")) == {"TEMPLATE", "CPU"}
        assert taken(network, "TEMPLATE") > budget - 40_000 - LAYER, "a further layer would have fitted"
        assert len(network.parts()) == 2, "the operations on the device are a run"
    expected = core.compile_model(layers(), "TEMPLATE")({"x": X})[0]
    np.testing.assert_allclose(network({"x": X})[0], expected, rtol=1e-5, atol=1e-5)
    network.export_model(path := tmp_path / "network.blob")
    np.testing.assert_array_equal(core.import_model(path)({"x": X})[0], network({"x": X})[0])


def test_the_query_names_what_does_not_fit(core: Core) -> None:
    budget = 2 * LAYER + 40_000
    config = {"DEVICE_PROPERTIES": {"TEMPLATE": {"MEMORY_BUDGET": f"{budget}B"}}}
    answer = core.query_model(layers(), "HETERO:TEMPLATE,CPU", config)
    assert answer.is_supported
    assert answer.placement is not None
    refused = [each for each in answer.placement.refusals if each.device == "TEMPLATE"]
    assert {each.cause for each in refused} == {"memory"}
    assert (
        f"does not fit into MEMORY_BUDGET of TEMPLATE beside the operations that are there: {budget}"
        in refused[0].reason
    )
    assert {node for s in answer.placement.subgraphs if s.device == "CPU" for node in s.nodes} == {
        each.node for each in refused
    }


def test_defaults_of_a_device_are_its_budget_too(core: Core) -> None:
    core.set_property("TEMPLATE", {"MEMORY_BUDGET": 2 * LAYER + 40_000})
    network = core.compile_model(layers(), "HETERO:TEMPLATE,CPU", {"CACHE_DIR": ""})
    assert 0 < taken(network, "TEMPLATE") <= 2 * LAYER + 40_000


def test_a_device_that_keeps_larger_weights_gets_less(core: Core) -> None:
    """CPU needs more for a layer than its constants have: what it is given follows from what its networks take."""
    budget = 3 * LAYER
    network = compiled(core, layers(), {"CPU": budget}, "CPU,TEMPLATE")
    assert 0 < taken(network, "CPU") <= budget
    np.testing.assert_allclose(
        network({"x": X})[0], core.compile_model(layers(), "TEMPLATE")({"x": X})[0], rtol=1e-4, atol=1e-5
    )


def test_a_device_without_room_gets_nothing(core: Core) -> None:
    network = compiled(core, layers(), {"TEMPLATE": 1000})
    assert network.get_metric("SUBGRAPH_DEVICES") == ("CPU",)


def test_operations_without_bytes_end_in_an_error(core: Core) -> None:
    """By the estimate they always fit, and no network does."""
    node = helper.make_node("RandomNormal", [], ["y"], "noise", shape=[64, 64], seed=1.0)
    y = helper.make_tensor_value_info("y", 1, [64, 64])
    model = helper.make_model(helper.make_graph([node], "noise", [], [y]))
    with pytest.raises(MemoryBudgetError, match=r"`noise`.* MEMORY_BUDGET is 10"):
        compiled(core, model, {"TEMPLATE": 10}, "TEMPLATE")


def test_what_no_other_device_may_run_is_the_error(core: Core) -> None:
    with pytest.raises(MemoryBudgetError, match=r"only TEMPLATE may run take \d+ .*most is held by `product"):
        compiled(core, layers(), {"TEMPLATE": 2 * LAYER}, "TEMPLATE")
    model = core.read_model(layers())
    next(node for node in model.ordered_nodes() if node.friendly_name == "product3").rt_info["affinity"] = "TEMPLATE"
    with pytest.raises(MemoryBudgetError, match="most is held by `product3`"):
        compiled(core, model, {"TEMPLATE": LAYER // 2})
    network = compiled(core, model, {"TEMPLATE": LAYER + 40_000})
    assert "TEMPLATE" in network.get_metric("SUBGRAPH_DEVICES")


def test_both_budgets_are_kept_or_neither_is_exceeded(core: Core) -> None:
    whole = taken(core.compile_model(layers(), "HETERO:CPU", {"CACHE_DIR": ""}), "CPU")
    network = compiled(core, layers(), {"TEMPLATE": 5 * LAYER + 40_000, "CPU": whole - LAYER})
    assert taken(network, "TEMPLATE") <= 5 * LAYER + 40_000
    assert taken(network, "CPU") <= whole - LAYER
    with pytest.raises(MemoryBudgetError, match="MEMORY_BUDGET"):
        compiled(core, layers(), {"TEMPLATE": 2 * LAYER, "CPU": 2 * LAYER})


def test_open_lengths_share_the_budget(core: Core) -> None:
    model = core.read_model(layers("N"))
    for node in model.ordered_nodes():
        if node.friendly_name in ("product3", "tanh3"):
            node.rt_info["affinity"] = "TEMPLATE"
    network = compiled(core, model, {"CPU": "2MB"}, "CPU,TEMPLATE")
    devices = network.get_metric("SUBGRAPH_DEVICES")
    assert devices.count("CPU") == 2
    shares = [
        part.config["MEMORY_BUDGET"]
        for part, name in zip(network.parts().values(), devices, strict=True)
        if name == "CPU"
    ]
    assert sum(shares) <= 2_000_000
    assert network({"x": X})[0].shape == (16, WIDTH)
    with pytest.raises(MemoryBudgetError, match="MEMORY_BUDGET"):
        network({"x": np.ones((20_000, WIDTH), np.float32)})
    assert network({"x": X})[0].shape == (16, WIDTH)


def test_the_budget_of_a_device_that_runs_on_another_is_named(core: Core) -> None:
    """HETERO does not have it, and can give the device no less."""
    inner = {"DEVICE_PRIORITIES": "CPU", "BATCH_SIZE": 2, "DEVICE_PROPERTIES": {"CPU": {"MEMORY_BUDGET": 5}}}
    with pytest.raises(MemoryBudgetError, match=r"subgraph 0 on BATCH .* does not fit into MEMORY_BUDGET \(5 bytes\)"):
        core.compile_model(layers(), "HETERO:BATCH,CPU", {"CACHE_DIR": "", "DEVICE_PROPERTIES": {"BATCH": inner}})


@pytest.mark.parametrize("budget", [0, -5, "none"])
def test_what_is_no_budget_is_refused_by_name(budget: Any, core: Core) -> None:
    with pytest.raises(PropertyError, match="MEMORY_BUDGET takes int of bytes"):
        compiled(core, layers(), {"TEMPLATE": budget})


def test_the_certificate_has_bytes_and_budgets(core: Core) -> None:
    network = compiled(core, layers(), {"TEMPLATE": 3 * LAYER + 40_000})
    certificate, wiring = network.certificate, network.dataflow.wiring
    assert certificate.budgets == {"TEMPLATE": 3 * LAYER + 40_000}
    assert sorted(set(certificate.weights.tolist())) == [0, LAYER]
    again = Certificate.from_bytes(certificate.to_bytes())
    again.verify(wiring)
    read = json.loads(certificate.to_bytes())
    for changed, message in (
        ({"budgets": {"TEMPLATE": LAYER}}, "memory budget is"),
        ({"budgets": {"TEMPLATE": 0}}, "positive integers"),
        ({"budgets": 7}, "malformed"),
        ({"weights": read["weights"][1:]}, "weights that do not match"),
        ({"weights": [-1] * len(read["weights"])}, "weights that do not match"),
    ):
        with pytest.raises(BlobCorruptError, match=message):
            Certificate.from_bytes(json.dumps({**read, **changed}).encode()).verify(wiring)


def test_an_import_compares_the_sum_of_the_parts(core: Core, tmp_path: Path) -> None:
    network = compiled(core, layers(), {"TEMPLATE": 3 * LAYER + 40_000})
    network.export_model(path := tmp_path / "network.blob")
    less = {"DEVICE_PROPERTIES": {"TEMPLATE": {"MEMORY_BUDGET": LAYER}}}
    with pytest.raises(MemoryBudgetError, match="MEMORY_BUDGET"):
        core.import_model(path, config=less)


@pytest.mark.parametrize("seed", range(6))
def test_by_cost_no_choice_of_few_operations_is_cheaper(seed: int, core: Core) -> None:
    """All choices of ten operations are tried: what is chosen fits, and costs at most a fifth more than the best."""
    random = np.random.default_rng(seed)
    widths = tuple(int(each) for each in random.integers(4, 60, 6))
    model = canonical_model(core.read_model(layers(8, widths)))
    answers = [core.query_model(model, device) for device in ("TEMPLATE", "CPU")]
    claims = Claims.of(ModelGraph.of(model), ("TEMPLATE", "CPU"), answers)
    count = len(claims.graph)
    costs = default_costs(claims.graph, claims.devices, claims.levels)
    costs.node_seconds[:] = random.uniform(1e-5, 1e-3, (2, count))
    costs.transfer_overhead[~np.eye(2, dtype=bool)] = 2e-5
    memory, stated = NodeMemory.of(claims.graph), np.full(count, -1)
    limit = memory.taken(np.ones(count, bool)) // 2
    found = within_budgets(claims, stated, costs, {"TEMPLATE": limit}, is_measured=True)
    assert memory.taken(found.levels[0] != REFUSED) <= limit
    cost = costs.total_seconds(claims.graph, place_by_cost(found, stated, costs).affinity)
    best = min(
        costs.total_seconds(claims.graph, affinity)
        for number in range(1 << count)
        if memory.taken((affinity := np.array([number >> n & 1 for n in range(count)])) == 0) <= limit
    )
    assert cost <= 1.2 * best
