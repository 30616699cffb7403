"""Profiles of a device that runs a subgraph as one, as a runtime does: one record that names its nodes.

If this fails, a report divides a time among nodes that nobody measured, counts it twice, or leaves it out.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_template import TemplatePlugin
from engine_template.network import TemplateNetwork
from engine_template.request import TemplateInferRequest

from engine import Core, ops
from engine.cli.benchmark import Subject, measure_layers
from engine.cli.benchmark.document import describe_layer
from engine.cli.benchmark.tables import layer_table
from engine.cli.main import main
from engine.ir import Constant, Model, Parameter, f32
from engine.passes.runtime_info import is_operation
from engine.plugin_api import Config, ExecutableNetwork, SyncInferRequest
from engine.runtime.profile_page import profile_page
from engine.testing.behaviour.profiles import ProfileChecks
from tests.trace_reader import read_trace

NODES = ("product", "top", "last")


class WholeRequest(TemplateInferRequest):
    nodes: tuple[str, ...] = ()

    def _run_operations(self) -> None:
        is_profiling, self.is_profiling = self.is_profiling, False
        start = time.perf_counter_ns()
        super()._run_operations()
        self.is_profiling = is_profiling
        if is_profiling:
            self.record_subgraph(self.nodes, start, time.perf_counter_ns(), kernel="acme 2.1")


class WholeNetwork(TemplateNetwork):
    def create_infer_request_impl(self) -> SyncInferRequest:
        request = WholeRequest(self, self.program)
        request.nodes = tuple(node.friendly_name for node in self.graph.ordered_nodes() if is_operation(node))
        return request


class WholePlugin(TemplatePlugin):
    name = "WHOLE"

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        network = WholeNetwork(self, config, model)
        network.load(model.clone())
        return network


def model() -> Model:
    x = Parameter(f32, [8, 16], "x")
    product = ops.MatMul(x, Constant(np.full((16, 16), 0.1, np.float32)), friendly_name="product")
    top = ops.Softmax(product, axis=-1, friendly_name="top")
    last = ops.MatMul(top, Constant(np.full((16, 4), 0.2, np.float32)), friendly_name="last")
    return Model([last], [x], name="joined")


@pytest.fixture
def core() -> Core:
    made = Core()
    made.register_plugin("WHOLE", WholePlugin)
    return made


def profiled(core: Core, subject: Model, device: str = "WHOLE") -> Any:
    request = core.compile_model(subject, device, {"PERF_COUNT": True}).create_infer_request()
    request.infer({"x": np.ones((8, 16), np.float32)})
    return request.profiling_info


def test_one_record_names_the_nodes(core: Core, tmp_path: Path) -> None:
    profile = profiled(core, model())
    (record,) = profile.nodes
    assert (record.name, record.op_type, record.nodes) == ("product .. last (3 nodes)", "Subgraph", NODES)
    assert not record.is_total
    assert profile.node_nanoseconds == {}, "no time of a single node is known"
    (row,) = [line.split() for line in profile.table().splitlines() if "Subgraph" in line]
    assert row[:8] == ["product", "..", "last", "(3", "nodes)", "Subgraph", "acme", "2.1"]
    assert "product .. last (3 nodes)" in profile_page([profile], "page")
    profile.trace(tmp_path / "trace.json")
    trace = read_trace((tmp_path / "trace.json").read_text(encoding="utf-8"))
    (span,) = trace.spans["request 0: steps"]
    assert span["args"]["nodes"] == "product, top, last"
    assert "request 0: subgraphs" not in trace.spans


def test_a_single_node_has_its_name(core: Core) -> None:
    x = Parameter(f32, [8, 16], "x")
    (record,) = profiled(core, Model([ops.Relu(x, friendly_name="relu")], [x])).nodes
    assert (record.name, record.nodes) == ("relu", ("relu",))


def test_hetero_keeps_the_record_of_a_part(core: Core, tmp_path: Path) -> None:
    subject = model()
    subject.node("last").rt_info["affinity"] = "CPU"
    profile = profiled(core, subject, "HETERO:WHOLE,CPU")
    whole, joined, other, last = profile.nodes
    assert [record.name for record in profile.nodes if record.is_total] == ["subgraph 0", "subgraph 1"]
    assert (whole.name, other.name, last.name) == ("subgraph 0", "subgraph 1", "last")
    assert (joined.name, joined.nodes, joined.part) == ("product .. top (2 nodes)", NODES[:2], "0: WHOLE")
    table = profile.table()
    assert "subgraph 0" not in table
    assert any("(2 nodes)" in line and "0: WHOLE" in line for line in table.splitlines())
    profile.trace(tmp_path / "trace.json")
    trace = read_trace((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert [span["name"] for span in trace.spans["request 0: steps on WHOLE"]] == [joined.name]
    assert [span["name"] for span in trace.spans["request 0: subgraphs"]] == ["subgraph 0", "subgraph 1"]


def test_hetero_times_such_nodes_one_by_one(core: Core) -> None:
    """The record's time has the start of the device's runtime in it, which is not a node's."""
    measured = {"PLACEMENT": "MEASURED", "MEASURE_SECONDS": 60.0}
    network = core.compile_model(model(), "HETERO:WHOLE,CPU", measured)
    assert network({"x": np.ones((8, 16), np.float32)})[0].shape == (8, 4)


def test_virtual_devices_pass_the_record_on(core: Core) -> None:
    x = Parameter(f32, ["N", 16], "x")
    subject = Model([ops.Relu(ops.Neg(x, friendly_name="neg"), friendly_name="relu")], [x])
    for device in ("AUTO:WHOLE", "BATCH:WHOLE(4)"):
        (record,) = [record for record in profiled(core, subject, device).nodes if record.nodes]
        assert record.nodes == ("neg", "relu"), device


@pytest.fixture
def whole_cpu(core: Core, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file, where commands have the device WHOLE."""
    for place in ("engine.cli.networks.Core", "engine.cli.benchmark.subject.Core", "engine.core.Core"):
        monkeypatch.setattr(place, lambda *args, **settings: core, raising=False)
    model().save(tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_benchmark_counts_the_work_of_all_its_nodes(whole_cpu: Path) -> None:
    (layer,) = measure_layers(Subject(str(whole_cpu), "WHOLE"), {"x": np.ones((8, 16), np.float32)}, runs=2)
    separate = measure_layers(Subject(str(whole_cpu), "TEMPLATE"), {"x": np.ones((8, 16), np.float32)}, runs=2)
    assert (layer.nodes, layer.share) == (NODES, 1)
    assert layer.operations == sum(each.operations or 0 for each in separate)
    assert layer.bytes is not None
    assert layer.bytes < sum(each.bytes or 0 for each in separate)
    (row,) = layer_table({"layers": [describe_layer(layer, None)]}).rows
    assert row[:2] == ("product .. last (3 nodes)"[-20:].rjust(22, "."), "acme 2.1")


def test_commands_show_the_nodes(whole_cpu: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["profile", str(whole_cpu), "-d", "WHOLE", "--json"]) == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert node["nodes"] == list(NODES)
    picture = tmp_path / "graph.html"
    assert main(["visualize", str(whole_cpu), "-d", "WHOLE", "--profile", "-o", str(picture)]) == 0
    text = picture.read_text(encoding="utf-8")
    assert "3 nodes ran as 1 subgraph, without a time of each" in text
    assert "runs in" in text


@pytest.mark.parametrize(
    ("names", "message"),
    [(("product", "stranger"), "stranger"), (("product", "top", "product"), "ran as one names")],
)
def test_the_kit_checks_the_names(
    core: Core, names: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = ProfileChecks()
    profile = profiled(core, model())
    checks._check_names(profile, set(NODES))
    monkeypatch.setattr(
        WholeNetwork, "create_infer_request_impl", lambda self: _with(WholeRequest(self, self.program), names)
    )
    with pytest.raises(AssertionError, match=message):
        checks._check_names(profiled(core, model()), set(NODES))


def _with(request: WholeRequest, names: tuple[str, ...]) -> WholeRequest:
    request.nodes = names
    return request
