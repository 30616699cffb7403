"""The content of profiles: as a table, as a trace, of several requests, with devices' kernels, parts and memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import InferError
from engine.ir import Constant, Model, Parameter, f32
from engine.runtime import NodeProfile, ProfilingInfo, StageProfile, TransferProfile
from engine.runtime.profiling import profile_network
from engine.runtime.trace import write_trace
from tests.trace_reader import read_trace

HOSTILE = '"\\\n\u202e\ud800 name</script>' + "x" * 300
DEVICES = ["TEMPLATE", "CPU", "OPENCL", "HETERO:TEMPLATE,CPU", "HETERO:OPENCL,CPU"]


def model() -> Model:
    x = Parameter(f32, [8, 16], "x")
    product = ops.MatMul(x, Constant(np.full((16, 16), 0.1, np.float32)), friendly_name="product")
    top = ops.Softmax(product, axis=-1, friendly_name="softmax")
    last = ops.MatMul(top, Constant(np.full((16, 4), 0.2, np.float32)), friendly_name="last")
    last.rt_info["affinity"] = "CPU"
    return Model([last], [x], name="profiled")


def profiled(device: str, requests: int = 0, count: int = 3) -> tuple[ProfilingInfo, ...]:
    core = Core()
    if "OPENCL" in device and "OPENCL" not in core.available_devices:
        pytest.skip(f"{device} is not available")
    subject = model()
    if not device.startswith("HETERO"):
        subject.ordered_nodes()[-2].rt_info.clear()
    network = core.compile_model(subject, device, {"PERF_COUNT": True})
    inputs = {"x": np.ones((8, 16), np.float32)}
    return profile_network(network, inputs, requests=requests, count=count).profiles


def info(*nodes: NodeProfile, request: int = 0, begun: int = 1_000) -> ProfilingInfo:
    stages = (StageProfile("start_pipeline", "pool", begun + 500, begun + 10_000),)
    return ProfilingInfo(request, stages, nodes, begun_ns=begun)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("requests", [0, 2])
def test_traces_of_devices_are_valid(device: str, requests: int, tmp_path: Path) -> None:
    profiles = profiled(device, requests, count=4)
    assert len(profiles) == 4
    write_trace(profiles, tmp_path / "trace.json", "profiled")
    trace = read_trace((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert trace.process == "profiled"
    inferences = [s for name, spans in trace.spans.items() if name.startswith("request") for s in spans]
    assert sum(span["name"] == "inference" for span in inferences) == 4
    assert any(name.startswith("executor ") for name in trace.spans)
    steps = [span for name, spans in trace.spans.items() if ": steps" in name for span in spans]
    assert {"product", "softmax", "last"} & {span["name"] for span in steps}
    if "TEMPLATE" not in device:
        assert all(span["args"]["kernel"] for span in steps)
        assert max(value for values in trace.counters.values() for _, value in values) > 0
    assert all(values[-1][1] == 0 for values in trace.counters.values()), "nothing is in use in the end"
    if device == "HETERO:OPENCL,CPU":
        assert {"request 0: steps on OPENCL", "request 0: steps on CPU", "request 0: subgraphs"} <= set(trace.spans)
        moved = [span["args"] for span in trace.spans["request 0: transfers"]]
        assert {("0: OPENCL", "1: CPU"), ("OPENCL", "host")} <= {(each["from"], each["to"]) for each in moved}


def test_records_of_hetero_name_the_part() -> None:
    (profile,) = profiled("HETERO:TEMPLATE,CPU", count=1)
    parts = {record.node_name: record.part for record in profile.nodes}
    assert parts["product"] == "0: TEMPLATE"
    assert parts["last"] == "1: CPU"
    assert parts["subgraph 0"] == "0: TEMPLATE"
    assert "subgraph 0" not in profile.node_nanoseconds
    (passed,) = [t for t in profile.transfers if t.source == "0: TEMPLATE"]
    assert (passed.target, passed.byte_size) == ("1: CPU", 8 * 16 * 4)
    table = profile.table()
    for text in ("1: CPU", "0: TEMPLATE", "start_pipeline", "last"):
        assert text in table


@pytest.mark.parametrize("device", DEVICES)
def test_tables_fit_a_terminal(device: str) -> None:
    table = profiled(device, count=1)[0].table()
    assert max(map(len, table.splitlines())) <= 80
    assert table.startswith("one inference takes ")
    assert "last" in table


def test_a_table_adds_up_and_is_shortened() -> None:
    nodes = [NodeProfile("conv", "Conv", "native", 2_000, 4_000, "winograd", "0: GPU")]
    nodes.append(NodeProfile("conv (2)", "Conv", "native", 6_000, 1_000, "reorder", "0: GPU", "conv"))
    nodes.append(NodeProfile("a/long/name/" + "x" * 100 + "/end", "Softmax", "reference", 7_000, 500, "", "1: CPU"))
    nodes.append(NodeProfile("subgraph 0", "Subgraph", "GPU", 1_500, 9_000, part="0: GPU"))
    table = info(*nodes).table()
    lines = [line.split() for line in table.splitlines()]
    assert ["conv", "Conv", "winograd,", "reorder", "0:", "GPU", "5.00", "us", "50.0", "%"] in lines
    assert ["(waiting)", "pool", "0.50", "us", "5.0", "%"] in lines
    (last,) = [line for line in table.splitlines() if "Softmax" in line]
    assert last.startswith("...")
    assert "/end" in last
    assert "reference" in last
    assert max(map(len, table.splitlines())) <= 80
    assert info(*nodes).table(1).endswith("and 1 more node, which take 5.0 %")


def test_a_table_without_a_profile_says_why() -> None:
    assert "PERF_COUNT" in ProfilingInfo(0, (), ()).table()


def test_any_name_makes_a_valid_trace_and_table(tmp_path: Path) -> None:
    node = NodeProfile(HOSTILE, HOSTILE, HOSTILE, 2_000, 1_000, HOSTILE, HOSTILE, HOSTILE, 5)
    odd = ProfilingInfo(
        0,
        (StageProfile(HOSTILE, HOSTILE, 1_000, 9_000),),
        (node,),
        (TransferProfile(HOSTILE, HOSTILE, HOSTILE, None, 0, 5),),
    )
    odd.trace(tmp_path / "trace.json", HOSTILE)
    trace = read_trace((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert sum(map(len, trace.spans.values())) == 5
    assert max(map(len, odd.table().splitlines())) <= 80
    assert all(line.isprintable() for line in odd.table().splitlines())


def test_requests_that_overlap_have_tracks_of_their_own(tmp_path: Path) -> None:
    """Two requests on one executor with two threads: neither hides the other."""
    profiles = [
        info(NodeProfile(f"n{r}", "Conv", "native", 2_000, 500), request=r, begun=1_000 + 7 * r) for r in (0, 1)
    ]
    write_trace(profiles, tmp_path / "trace.json")
    spans = read_trace((tmp_path / "trace.json").read_text(encoding="utf-8")).spans
    assert set(spans) == {
        "request 0", "request 1", "executor pool", "executor pool (2)", "request 0: steps", "request 1: steps",
    }  # fmt: skip
    assert [span["name"] for span in spans["request 0"]] == ["inference", "wait for pool", "start_pipeline"]
    assert spans["request 0"][1]["dur"] == 0.5


def test_profiling_needs_perf_count() -> None:
    network = Core().compile_model(model(), "TEMPLATE")
    with pytest.raises(InferError, match="compile it with PERF_COUNT"):
        profile_network(network, {"x": np.ones((8, 16), np.float32)}, count=1)
    with pytest.raises(InferError, match="count must be 1 or more"):
        profile_network(network, {}, count=0)


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot write .*nowhere/trace\.json: folder .*nowhere does not exist"):
        info().trace(tmp_path / "nowhere" / "trace.json")
    with pytest.raises(OSError, match="cannot write /dev/full: No space left on device"):
        info().trace("/dev/full")
    assert not list(tmp_path.iterdir())
    assert Path("/dev/full").is_char_device(), "a device must not be replaced by a file"
