"""Choosing kernels by measurement: off by default, kept in files and blobs, and nothing in those is believed.

If this fails, a network computes with a kernel that nobody chose, or compiling measures again and again.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from engine_opencl.devices.device import device_of
from engine_opencl.lowering import registry
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.tuning.stopwatch import Stopwatch
from engine_opencl.tuning.tuner import BUDGETS
from engine_opencl.tuning.tuning_cache import TuningCache

from engine import Core, ops
from engine.blob import BlobReader, BlobWriter
from engine.errors import BlobError
from engine.ir import Model, Node, Parameter, Result, f32
from engine.lowering.tuning import read_choices
from engine.ops.spec import OperatorSpec
from engine.plugin_api import ExecutableNetwork

X = np.linspace(-2, 2, 96, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to negate: `repeats` times, in groups of `items` items."""

    repeats: int
    items: int = 16
    code: str = ""

    def __str__(self) -> str:
        return f"{self.repeats}x{self.items}{self.code}"


SLOW, FAST, BROKEN, GREEDY = Way(20000), Way(1), Way(1, 16, "not OpenCL C"), Way(1, 1 << 20)


class Negation(registry.OpLowering[OperatorSpec]):
    """A lowering with a choice."""

    def __init__(self, ways: tuple[Way, ...]) -> None:
        self.ways = ways
        self.launched: list[Way] = []

    def check(self, spec: OperatorSpec) -> registry.Refusal | None:
        return None

    def lower(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> None:
        node = spec.node
        x, y = b.input(node.input_value(0)), b.output(node.output(0))
        count = node.output(0).shape.size()

        def launch(b: LaunchPlanBuilder, way: Way) -> None:
            self.launched.append(way)
            source = (
                "__kernel void negate(__global const float* x, __global float* y) {\n"
                f"  const int i = get_global_id(0); if (i >= {count}) return; float v = x[i];\n"
                f"  for (int n = 0; n < {way.repeats}; ++n) v = v * 0.5f + x[(i * 7 + n) % {count}];\n"
                f"  {way.code} y[i] = v == 1e30f ? v : -x[i];\n}}\n"
            )
            b.launch(source, "negate", [x, y], (-(-count // way.items) * way.items,), (way.items,))

        b.choose(f"Neg {count}", self.ways, launch)


@pytest.fixture
def negation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Negation:
    lowering = Negation((SLOW, BROKEN, FAST, GREEDY))
    monkeypatch.setitem(registry.LOWERINGS._lowerings, ("", "Sinh"), (lowering, OperatorSpec))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return lowering


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "engine.opencl"):
        yield caplog


def compiled(effort: str = "none", *, layers: int = 1, length: int | None = 96) -> ExecutableNetwork:
    x = Parameter(f32, [length])
    value: Node = x
    for _ in range(layers):
        value = ops.create("Sinh", [value], {})
    return Core().compile_model(Model([Result(value)], [x], name="case"), "OPENCL", {"COMPILE_EFFORT": effort})


def imported(blob: bytes, effort: str = "none") -> ExecutableNetwork:
    return Core().import_model(blob, "OPENCL", {"COMPILE_EFFORT": effort})


def exported(network: ExecutableNetwork) -> bytes:
    stream = BytesIO()
    network.export_model(stream)
    return stream.getvalue()


def rewritten(blob: bytes, **changed: bytes) -> bytes:
    """A well-formed blob with other sections."""
    with BlobReader(blob) as reader:
        writer = BlobWriter(reader.manifest)
        for name in reader.section_names:
            writer.add_section(name, changed.get(name, bytes(reader.section(name))))
    stream = BytesIO()
    writer.write(stream)
    return stream.getvalue()


def check(network: ExecutableNetwork, layers: int = 1) -> None:
    (found,) = network([X]).values()
    np.testing.assert_array_equal(found, X * (-1) ** layers)


def chosen(network: ExecutableNetwork) -> dict[str, str]:
    """The choices, by site."""
    lines = network.get_metric("KERNEL_CHOICES")
    return {key: text.split()[0] for key, text in (line.split(": ") for line in lines)}


def test_nothing_is_measured_unless_asked_for(negation: Negation, tmp_path: Path) -> None:
    network = compiled()
    assert negation.launched == [SLOW]
    assert chosen(network) == {}
    check(network)
    assert not list(tmp_path.rglob("tuning-*"))


def test_what_is_clearly_faster_is_chosen(negation: Negation, log: pytest.LogCaptureFixture) -> None:
    """Once for all equal layers; candidates that fail to build or run are skipped and logged."""
    network = compiled("full", layers=3)
    assert chosen(network) == {"Neg 96": str(FAST)}
    assert negation.launched[-3:] == [FAST] * 3
    assert sum(way == GREEDY for way in negation.launched) == 1
    check(network, layers=3)
    for left_out in (BROKEN, GREEDY):
        assert f"candidate {left_out} for Neg 96 is skipped" in log.text
    assert f"Neg 96: chose {FAST}" in log.text


def test_measuring_leaves_the_plan_as_it_is(negation: Negation) -> None:
    """The plan is not rebuilt if the default is kept."""
    negation.ways = (FAST, SLOW)
    plans = []
    for effort in ("none", "full"):
        network = compiled(effort, layers=4)
        check(network, layers=4)
        context = network.pool.take([X])  # type: ignore[attr-defined]
        plans.append([(a.first, a.last, a.offset) for launch in context.plan.launches for a in launch.arguments])
    assert plans[0] == plans[1]


@pytest.mark.parametrize(("other", "is_chosen"), [(100, False), (96, False), (94, True)])
def test_the_default_gives_way_to_what_is_clearly_faster(
    negation: Negation, monkeypatch: pytest.MonkeyPatch, other: int, is_chosen: bool
) -> None:
    negation.ways = (FAST, replace(FAST, code="/**/"))
    monkeypatch.setattr(
        Stopwatch, "bind", lambda _, steps, weights: lambda: other if "/**/" in steps[0].source else 100
    )
    assert chosen(compiled("full")) == {"Neg 96": str(negation.ways[is_chosen])}


def test_a_candidate_that_cannot_be_compiled_is_skipped_without_child_processes_too(negation: Negation) -> None:
    negation.ways = (FAST, BROKEN, SLOW)
    config = {"COMPILE_EFFORT": "full", "KERNEL_TRIAL_SECONDS": 0.0}
    x = Parameter(f32, [96])
    model = Model([Result(ops.create("Sinh", [x], {}))], [x], name="case")
    assert chosen(Core().compile_model(model, "OPENCL", config)) == {"Neg 96": str(FAST)}


def test_what_a_launch_costs_the_host_is_not_time_of_a_gpu(negation: Negation, monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="gpu"))
    launched, enqueue = [], cl.enqueue_nd_range_kernel

    def slow(*given: Any, **named: Any) -> Any:
        time.sleep(0.02)
        launched.append(given)
        return enqueue(*given, **named)

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", slow)
    negation.ways = (FAST, replace(FAST, code="/**/"))
    (line,) = compiled("full").get_metric("KERNEL_CHOICES")
    times = [float(found) for found in re.findall(r"([0-9.]+) us", line)]
    assert len(launched) > len(times) == 2
    assert all(0 < spent < 10_000 for spent in times)


def test_quick_measures_the_first_few(negation: Negation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUDGETS, "quick", 600.0)
    negation.ways = (SLOW, BROKEN, GREEDY, Way(200000), FAST)
    assert chosen(compiled("quick")) == {"Neg 96": str(SLOW)}
    assert FAST not in negation.launched
    # The little that quick has seen is not taken for all that there is.
    assert chosen(compiled("full", layers=2)) == {"Neg 96": str(FAST)}
    assert chosen(compiled("quick")) == {"Neg 96": str(FAST)}


def test_a_budget_that_does_not_suffice_leaves_the_default(
    negation: Negation, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(BUDGETS, "full", 1e-6)
    network = compiled("full")
    assert chosen(network) == {}
    check(network)
    assert "COMPILE_EFFORT full ended before all kernels were measured" in log.text


def test_what_was_measured_serves_other_networks(negation: Negation, tmp_path: Path) -> None:
    compiled("full")
    assert len(list((tmp_path / "engine-opencl").glob("tuning-*.json"))) == 1
    negation.launched.clear()
    network = compiled("full", layers=2)
    assert chosen(network) == {"Neg 96": str(FAST)}
    assert set(negation.launched) == {SLOW, FAST}
    # Without effort, a network is the same whatever was measured before.
    assert chosen(compiled()) == {}
    # No inference waits for a measurement; what is known is used.
    dynamic = compiled("full", length=None)
    negation.launched.clear()
    check(dynamic)
    (other,) = dynamic([X[:5]]).values()
    np.testing.assert_array_equal(other, -X[:5])
    assert negation.launched == [SLOW, FAST, SLOW]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', '{"format": 1, "key": 3, "choices": {}}', "[" * 9999])
def test_a_damaged_cache_is_replaced(tmp_path: Path, text: str) -> None:
    path = TuningCache(tmp_path, device_of("0")).path
    path.write_text(text, encoding="utf-8")
    cache = TuningCache(tmp_path, device_of("0"))
    assert cache.get("a") is None
    cache.put("a", "b")
    cache.save()
    assert TuningCache(tmp_path, device_of("0")).get("a") == "b"


def test_a_cache_of_another_driver_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of("0")
    cache = TuningCache(tmp_path, device)
    cache.put("a", "b")
    cache.save()
    monkeypatch.setattr(device, "facts", replace(device.facts, driver="another"))
    other = TuningCache(tmp_path, device)
    assert other.get("a") is None
    # It is not used either if its name says that it belongs to this one.
    other.path.write_bytes(cache.path.read_bytes())
    assert TuningCache(tmp_path, device).get("a") is None


def test_a_blob_brings_its_choices(negation: Negation) -> None:
    blob = exported(compiled("full"))
    negation.launched.clear()
    network = imported(blob)
    assert negation.launched == [FAST]
    check(network)
    assert chosen(imported(exported(network), "full")) == {"Neg 96": str(FAST)}
    assert set(negation.launched) == {FAST}


def test_a_blob_of_another_driver_brings_none(negation: Negation, log: pytest.LogCaptureFixture) -> None:
    blob = rewritten(exported(compiled("full")), compiler=b"Another GPU / 1.0")
    network = imported(blob)
    assert chosen(network) == {}
    assert negation.launched[-1] == SLOW
    check(network)
    assert "its kernels are chosen and compiled again" in log.text


def test_a_forged_choice_is_not_used(negation: Negation, log: pytest.LogCaptureFixture) -> None:
    forged = json.dumps({"Neg 96": "1x16); system(", "Conv": "x"}).encode()
    network = imported(rewritten(exported(compiled("full")), choices=forged))
    assert negation.launched[-1] == SLOW
    check(network)
    assert "'1x16); system(' is not a candidate for Neg 96" in log.text


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"a": 1}', b"\xff", b"[" * 9999])
def test_choices_that_are_none_are_refused(negation: Negation, text: bytes) -> None:
    with pytest.raises(BlobError):
        read_choices(text)
    with pytest.raises(BlobError, match="export the network again"):
        imported(rewritten(exported(compiled()), choices=text))
