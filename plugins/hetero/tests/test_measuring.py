"""Measured costs have to belong to the device, the node and the bytes that they are reported for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_cpu import CpuPlugin
from engine_hetero.affinity.costs.calibrated_costs import calibration_path, device_key, measured_costs
from engine_hetero.affinity.costs.calibration import (
    Calibration,
    Figure,
    read_calibration,
    signature_of,
    update_calibration,
)
from engine_hetero.affinity.costs.cost_model import CostModel, default_costs
from engine_hetero.affinity.costs.measuring import BYTE, SUBGRAPH, VALUE, Subject, attributed, measure
from engine_hetero.affinity.costs.probes import Deadline, Timing, border_probe, nodes_probe, run_probe
from engine_hetero.affinity.measured_placing import place_by_cost
from engine_hetero.affinity.placement import UNPLACED
from engine_hetero.properties import OWN_PROPERTIES
from engine_hetero.query.claims import Claims
from engine_hetero.query.model_graph import ModelGraph
from engine_template import TemplatePlugin

from engine import Core, ops
from engine.errors import DeviceNotFoundError, PropertyError, UnsupportedError
from engine.ir import Constant, Model, Node, Parameter, SequenceType, TensorType, f32, i64
from engine.onnx import read_model
from engine.plugin_api import Config, ExecutableNetwork, QueryResult, Support
from engine.properties import CONFIG_PROPERTIES
from engine.testing.networks import seeded_network

AMPLE = 60.0
BORDERS = {SUBGRAPH, VALUE, BYTE}


def plain(device: str) -> Mapping[str, Any]:
    return {}


@pytest.fixture
def core() -> Core:
    core = Core()
    core.register_plugin("CPU2", CpuPlugin)
    return core


def layers(count: int = 3, width: int = 64) -> Model:
    """Products, each followed by a Relu; all products are equal, and so are all Relus."""
    x = Parameter(f32, [8, width], "x")
    node: Node = x
    for number in range(count):
        product = ops.MatMul(node, Constant(np.full((width, width), 1 / width, np.float32)))
        product.friendly_name = f"product{number}"
        node = ops.Relu(product)
        node.friendly_name = f"relu{number}"
    return Model([node], [x])


def claims_of(core: Core, model: Model, *devices: str) -> Claims:
    graph = ModelGraph.of(model)
    return Claims.of(graph, devices, [core.query_model(graph.model, device) for device in devices])


# -- on devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [("TEMPLATE", "CPU"), ("CPU", "CPU2")])
def test_every_claimed_node_is_measured(core: Core, devices: tuple[str, str]) -> None:
    claims = claims_of(core, layers(), *devices)
    costs = measured_costs(core, claims, plain, "", AMPLE)
    assert costs.origin == "measured"
    assert (costs.node_seconds >= 0).all()
    assert (costs.node_seconds.sum(axis=1) > 0).all()
    assert (costs.subgraph_overhead > 0).all()
    assert (costs.transfer_per_byte >= 0).all()
    np.testing.assert_array_equal(costs.transfer_overhead, costs.transfer_overhead.T)


@pytest.mark.parametrize("name", ["resnet50", "bert_base", "gru"])
def test_real_networks_are_measured_and_placed(core: Core, name: str) -> None:
    claims = claims_of(core, read_model(seeded_network(name, small=True).model), "TEMPLATE", "CPU")
    costs = measured_costs(core, claims, plain, "", AMPLE)
    assert costs.is_measured.mean() > 0.9
    placement = place_by_cost(claims, np.full(len(claims.graph), UNPLACED), costs)
    assert set(placement.sources) <= {"measured", "atom"}


def test_nothing_is_measured_that_a_device_refuses(
    core: Core, leaving: Callable[[str, Callable[[str], bool]], type[TemplatePlugin]]
) -> None:
    """The claimed nodes are compiled as one model, although they alternate with nodes of another device."""
    core.register_plugin("PICKY", leaving("PICKY", lambda name: name.startswith("product")))
    claims = claims_of(core, layers(), "PICKY", "CPU")
    costs = measured_costs(core, claims, plain, "", AMPLE)
    assert costs.is_measured[0].tolist() == [False, True] * 3
    assert costs.is_measured[1].all()


class Stubborn(TemplatePlugin):
    """Claims all nodes, compiles single nodes and probes, refuses products, and counts compilations."""

    name = "STUBBORN"
    compiled: list[str]

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        operations = [n.friendly_name for n in model.ordered_nodes() if n.op_type in ("MatMul", "Relu")]
        self.compiled = [*getattr(self, "compiled", []), *operations]
        if any(name.startswith("product") for name in operations):
            raise UnsupportedError("STUBBORN has no products after all")
        return super().compile_model(model, config)


def test_a_node_that_cannot_be_measured_keeps_its_default_and_is_logged(
    core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    core.register_plugin("STUBBORN", Stubborn)
    claims = claims_of(core, layers(), "STUBBORN")
    with caplog.at_level(logging.INFO, "engine.hetero"):
        costs = measured_costs(core, claims, plain, "", AMPLE)
    assert costs.is_measured[0].tolist() == [False, True] * 3
    assert "STUBBORN: MatMul `product0` cannot be measured separately: STUBBORN has no products" in caplog.text


def test_a_device_that_is_gone_is_an_error(core: Core) -> None:
    claims = claims_of(core, layers(), "CPU2")
    gone = Claims.of(claims.graph, ("CPU3",), claims.answers)
    with pytest.raises(DeviceNotFoundError, match="CPU3"):
        measured_costs(core, gone, plain, "", AMPLE)


def test_without_time_only_what_is_known_is_used(core: Core, tmp_path: Path) -> None:
    claims = claims_of(core, layers(), "CPU", "TEMPLATE")
    path = str(tmp_path / "calibration.json")
    costs = measured_costs(core, claims, plain, path, 0.0)
    assert costs.origin == "default"
    assert not (tmp_path / "calibration.json").exists()
    key = device_key(core, "CPU", {"PERF_COUNT": True, "CACHE_DIR": ""})
    known = {signature_of(claims.graph.nodes[0]): Figure(7e-3, 1), SUBGRAPH: Figure(1e-3, 1)}
    known |= {VALUE: Figure(1e-4, 1), BYTE: Figure(1e-9, 1)}
    update_calibration(path, Calibration({key: known}))
    costs = measured_costs(core, claims, plain, path, 0.0)
    assert costs.is_measured.tolist() == [[True, False] * 3, [False] * 6]
    assert costs.node_seconds[0, 0] == 7e-3
    assert costs.subgraph_overhead[0] == 1e-3
    default = default_costs(claims.graph, claims.devices)
    assert costs.transfer_overhead[0, 1] == pytest.approx(1e-4 + default.transfer_overhead[0, 1] / 2)


# -- the calibration file -----------------------------------------------------------------------------------


def test_measurements_of_one_model_serve_another_with_equal_nodes(core: Core, tmp_path: Path) -> None:
    path = str(tmp_path / "calibration.json")
    first = measured_costs(core, claims_of(core, layers(2), "CPU", "TEMPLATE"), plain, path, AMPLE)
    before = Path(path).read_text()
    deeper = measured_costs(core, claims_of(core, layers(5), "CPU", "TEMPLATE"), plain, path, 0.0)
    assert deeper.origin == "measured", "no time was left to measure in"
    np.testing.assert_array_equal(deeper.node_seconds[:, :4], first.node_seconds)
    np.testing.assert_array_equal(deeper.transfer_per_byte, first.transfer_per_byte)
    assert Path(path).read_text() == before


def test_equal_devices_under_two_names_share_their_figures(core: Core, tmp_path: Path) -> None:
    path = str(tmp_path / "calibration.json")
    measured_costs(core, claims_of(core, layers(), "CPU"), plain, path, AMPLE)
    assert len(read_calibration(path).devices) == 1
    assert measured_costs(core, claims_of(core, layers(), "CPU2"), plain, path, 0.0).origin == "measured"


def test_another_configuration_is_measured_anew(core: Core, tmp_path: Path) -> None:
    path = str(tmp_path / "calibration.json")
    claims = claims_of(core, layers(), "CPU")
    measured_costs(core, claims, plain, path, AMPLE)
    measured_costs(core, claims, lambda device: {"INFERENCE_NUM_THREADS": 1}, path, AMPLE)
    assert len(read_calibration(path).devices) == 2
    for entries in read_calibration(path).devices.values():
        assert entries.keys() >= BORDERS
        assert sum(figure.count for name, figure in entries.items() if name not in BORDERS) == 6


def test_where_measured_networks_are_kept_has_no_effect(core: Core, tmp_path: Path) -> None:
    assert device_key(core, "CPU", {}) == device_key(core, "CPU", {"CACHE_DIR": str(tmp_path), "PERF_COUNT": True})


def test_a_damaged_file_is_refused_before_anything_is_measured(core: Core, tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text("{")
    with pytest.raises(PropertyError, match="damaged"):
        measured_costs(core, claims_of(core, layers(), "CPU"), plain, str(tmp_path / "calibration.json"), AMPLE)


def test_figures_that_cannot_be_kept_are_used_all_the_same(
    core: Core, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("engine_hetero.affinity.costs.calibration.os.replace", full)
    path = str(tmp_path / "calibration.json")
    costs = measured_costs(core, claims_of(core, layers(), "CPU"), plain, path, AMPLE)
    assert costs.origin == "measured"
    assert "could not be saved" in caplog.text
    assert "no space left" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ""),
        ({"CACHE_DIR": "cache"}, "cache/hetero-calibration.json"),
        ({"CACHE_DIR": "cache", "CALIBRATION_FILE": "/own.json"}, "/own.json"),
    ],
)
def test_the_file_is_the_stated_one_or_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert calibration_path(Config(CONFIG_PROPERTIES.combined(OWN_PROPERTIES), values)) == expected


@pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")
def test_a_cache_that_others_can_change_has_no_times(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise, another user's times would decide where a model's nodes run."""
    declared, folder = CONFIG_PROPERTIES.combined(OWN_PROPERTIES), tmp_path / "cache"
    assert calibration_path(Config(declared, {"CACHE_DIR": str(folder)}))
    assert folder.stat().st_mode & 0o777 == 0o700
    file = folder / "hetero-calibration.json"
    file.write_text("{}")
    for path in (folder, file):
        path.chmod(0o777)
        assert calibration_path(Config(declared, {"CACHE_DIR": str(folder)})) == ""
        assert f"{path} can be written by every user" in caplog.text
        assert calibration_path(Config(declared, {"CACHE_DIR": str(folder), "ALLOW_SHARED_CACHE": True})) == str(file)
        path.chmod(0o700)


# -- whose time a reported time is ---------------------------------------------------------------------------


def subject_of(model: Model, atoms: tuple[frozenset[str], ...] = ()) -> Subject:
    graph = ModelGraph.of(model)
    answer = QueryResult(dict.fromkeys(graph.names, Support.native()), atoms)
    claims = Claims.of(graph, ["D"], [answer])
    weights = np.arange(1.0, len(graph) + 1)
    return Subject(Core(), "D", {}, graph, 0, claims, weights)


def test_no_time_is_below_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes may be said to take longer than the inference: clocks differ. A negative cost would draw nodes to it."""
    monkeypatch.setattr("engine_hetero.affinity.costs.measuring.run_probe", lambda *given: Timing(1.0, {"relu0": 1.5}))
    found = measure(subject_of(layers(1)), {}, Deadline.after(AMPLE))
    assert found.keys() > BORDERS
    assert min(figure.seconds for figure in found.values()) >= 0


@pytest.mark.parametrize("reported", [{"relu0": 0.3, "product1": 0.3}, {"relu0": 0.6}])
def test_a_time_is_divided_among_the_members_of_an_atom(reported: dict[str, float]) -> None:
    subject = subject_of(layers(2), (frozenset({"product0", "relu0", "product1"}),))
    timing = Timing(1.0, reported | {"relu1": 0.1})
    assert attributed(subject, timing, 0.0) == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3, 3: 0.1})


def test_what_is_not_reported_runs_as_a_part_of_what_comes_next() -> None:
    """The sum of times stays as in the report."""
    found = attributed(subject_of(layers(2)), Timing(1.0, {"relu0": 0.6, "product1": 0.35}), 0.0)
    assert found == pytest.approx({0: 0.2, 1: 0.4, 2: 0.35 * 3 / 7, 3: 0.35 * 4 / 7})


def test_a_device_that_reports_little_of_an_inference_says_nothing_of_the_rest() -> None:
    assert attributed(subject_of(layers(2)), Timing(1.0, {"relu0": 0.2}), 0.1) == {1: 0.2}
    assert attributed(subject_of(layers(2)), Timing(1.0, {}), 0.1) == {}


def test_nodes_of_the_devices_own_making_stand_for_those_that_it_does_not_report() -> None:
    found = attributed(subject_of(layers(2)), Timing(1.0, {"fused": 0.7, "relu1": 0.3}), 0.0)
    assert found == pytest.approx({0: 0.7 / 6, 1: 0.7 * 2 / 6, 2: 0.7 * 3 / 6, 3: 0.3})


class Silent(TemplatePlugin):
    """Reports no nodes."""

    name = "SILENT"

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        network = super().compile_model(model, config)
        network.is_profiling = False
        return network


def test_nodes_of_a_device_that_reports_none_are_timed_one_by_one(core: Core) -> None:
    core.register_plugin("SILENT", Silent)
    costs = measured_costs(core, claims_of(core, layers(), "SILENT"), plain, "", AMPLE)
    assert costs.origin == "measured"
    assert costs.node_seconds[0, 0] == costs.node_seconds[0, 2], "equal nodes are compiled once"


# -- probes ------------------------------------------------------------------------------------------------


def test_a_probe_reads_inputs_where_others_make_values() -> None:
    """Values of nodes on other devices become inputs of the probe."""
    model = layers(3)
    probe = nodes_probe([model.node(name) for name in ("product0", "relu0", "product2")])
    assert [str(p.type) for p in probe.parameters] == ["f32[8,64]"] * 2
    operations = [n for n in probe.ordered_nodes() if n.op_type in ("MatMul", "Relu")]
    assert {node.friendly_name for node in operations} == {"product0", "relu0", "product2"}
    assert [result.input_value(0).node.friendly_name for result in probe.results] == ["relu0", "product2"]


def test_a_probe_of_a_node_reads_one_input_for_one_value() -> None:
    x = Parameter(f32, [4], "x")
    assert len(nodes_probe([ops.Add(x, x)]).parameters) == 1


def test_a_probe_holds_the_arithmetic_on_lengths_that_its_nodes_need(core: Core) -> None:
    x = Parameter(f32, ["n", 4], "x")
    count = ops.Shape(x, start=0, end=1)
    flat = ops.Relu(ops.Reshape(x, ops.Concat(ops.Mul(count, Constant(np.array([4]), i64)), axis=0)))
    graph = ModelGraph.of(Model([flat], [x]))
    assert graph.floating
    probe = nodes_probe(graph.nodes, graph.floating)
    assert len(probe.parameters) == 1
    timing = run_probe(core, probe, "TEMPLATE", {"PERF_COUNT": True}, Deadline.after(AMPLE))
    assert timing is not None
    assert timing.nodes.keys() >= set(graph.names)


@pytest.mark.parametrize(
    "node",
    [
        lambda x: ops.Gather(x, Parameter(i64, ["n"], "i")),
        lambda x: ops.Log(x),
        lambda x: ops.Reshape(x, Parameter(i64, [2], "shape")),
        lambda x: ops.Equal(Parameter(i64, [3], "a"), Parameter(i64, [3], "b")),
        lambda x: ops.TopK(x, Constant(np.array([2]), i64)).output(1).node,
    ],
)
def test_inputs_are_made_up_with_which_nodes_run(core: Core, node: Callable[[Parameter], Node]) -> None:
    made = node(Parameter(f32, [2, 2], "x"))
    made.friendly_name = "made"
    _ = Model([*made.outputs], [v.node for v in made.input_values if v and isinstance(v.node, Parameter)])
    timing = run_probe(core, nodes_probe([made]), "TEMPLATE", {"PERF_COUNT": True}, Deadline.after(AMPLE))
    assert timing is not None
    assert timing.seconds > 0
    assert timing.nodes.keys() == {"made"}


def test_inputs_that_cannot_be_made_up_are_refused(core: Core) -> None:
    values = Parameter(SequenceType(TensorType(f32, Parameter(f32, [1]).output(0).shape)), friendly_name="values")
    model = Model([ops.SequenceLength(values)], [values])
    with pytest.raises(UnsupportedError, match="input `values`"):
        run_probe(core, model, "TEMPLATE", {}, Deadline.after(AMPLE))


def test_nothing_starts_after_the_deadline(core: Core) -> None:
    assert run_probe(core, border_probe(1, 4), "NOWHERE", {}, Deadline.after(0.0)) is None


def test_the_cost_model_is_that_of_the_placement(core: Core) -> None:
    """A node that is far slower on one device is placed on the other, unless the user chose it."""
    model = layers(2, width=512)
    claims = claims_of(core, model, "TEMPLATE", "CPU")
    costs: CostModel = measured_costs(core, claims, plain, "", AMPLE)
    stated = np.array([UNPLACED, 0, UNPLACED, UNPLACED])
    placement = place_by_cost(claims, stated, costs)
    assert placement.affinity[1] == 0
    least = costs.total_seconds(claims.graph, placement.affinity)
    for other in range(16):
        affinity = np.array([other & 1, 0, other >> 1 & 1, other >> 2 & 1])
        assert least <= costs.total_seconds(claims.graph, affinity) * (1 + 1e-9)
