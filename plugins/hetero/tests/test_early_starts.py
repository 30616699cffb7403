"""Parts start before their turn where what was measured says that it pays, whatever was predicted."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from engine_hetero.network.early_starts import HOP_SECONDS, EarlyStarts
from engine_hetero.wiring.wiring import NETWORK, PartWiring, Source, Wiring
from engine_template import TemplatePlugin
from engine_template.request import TemplateInferRequest
from onnx import TensorProto, helper

from engine import Core
from engine.plugin_api import Config, ExecutableNetwork, Model

LIMIT = 60.0
SHORT, LONG = HOP_SECONDS / 2, HOP_SECONDS * 500


def fork(*seconds: float | None) -> Wiring:
    """Part 0 on A and part 1 on B read the input, part 2 on A reads both; with predicted times."""
    reads = ((NETWORK,), (NETWORK,), (0, 1))
    parts = tuple(
        PartWiring(device, tuple(Source(part, 0) for part in sources), 1, 1, expected)
        for device, sources, expected in zip("ABA", reads, seconds, strict=True)
    )
    return Wiring(parts, (Source(2, 0),), 1)


@pytest.mark.parametrize(
    ("expected", "starts"),
    [((LONG, LONG), True), ((SHORT, LONG), False), ((LONG, SHORT), False), ((None, None), True)],
)
def test_before_anything_has_run_the_prediction_decides(expected: tuple[float | None, ...], starts: bool) -> None:
    assert EarlyStarts(fork(*expected, LONG)).choose() == ({NETWORK: (1,)} if starts else {})


def test_what_is_measured_goes_before_what_was_predicted() -> None:
    early = EarlyStarts(fork(SHORT, SHORT, SHORT))
    assert not early.choose()
    early.add_measurement(0, LONG)
    assert not early.choose(), "no more is saved than the shorter of the two takes"
    early.add_measurement(1, LONG)
    assert early.choose() == {NETWORK: (1,)}
    early.add_measurement(1, SHORT)
    early.add_measurement(1, SHORT)
    assert not early.choose(), "the median counts"
    for _ in range(3):
        early.add_measurement(1, LONG)
    assert early.choose(), "what is long ago is forgotten"


def test_several_short_parts_together_are_worth_a_hop() -> None:
    """On A: 0 and 1, which reads 0; on B: 2, which reads the input. 2 runs beside both."""
    parts = (
        PartWiring("A", (Source(NETWORK, 0),), 1, 1),
        PartWiring("C", (Source(0, 0),), 1, 1),
        PartWiring("B", (Source(NETWORK, 0),), 1, 1),
    )
    early = EarlyStarts(Wiring(parts, (Source(1, 0), Source(2, 0)), 1))
    for part, seconds in enumerate((0.6 * HOP_SECONDS, 0.6 * HOP_SECONDS, LONG)):
        early.add_measurement(part, seconds)
    assert early.choose() == {NETWORK: (2,)}


def test_a_chain_never_starts_anything_early() -> None:
    parts = (PartWiring("A", (Source(NETWORK, 0),), 1, 1), PartWiring("B", (Source(0, 0),), 1, 1))
    assert not EarlyStarts(Wiring(parts, (Source(1, 0),), 1)).is_possible


# -- with devices and a clock that tells what they say ------------------------------------------------------


class Devices:
    """Devices LEFT and RIGHT, whose inferences take `seconds` on a clock of their own and may have to meet."""

    def __init__(self) -> None:
        self.now = 0
        self.seconds = LONG
        self.barrier: threading.Barrier | None = None
        self.threads: list[int] = []

    def perf_counter_ns(self) -> int:
        return self.now

    def plugin(self, name: str) -> type[TemplatePlugin]:
        devices = self

        class Request(TemplateInferRequest):
            def start_pipeline(self) -> None:
                devices.threads.append(threading.get_ident())
                if devices.barrier is not None:
                    devices.barrier.wait(LIMIT)
                devices.now += round(devices.seconds * 1e9)
                super().start_pipeline()

        class Device(TemplatePlugin):
            def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
                network = super().compile_model(model, config)
                network.create_infer_request_impl = lambda: Request(network, network.program)  # type: ignore[attr-defined,method-assign,arg-type]
                return network

        Device.name = name
        return Device


def test_short_parts_that_turn_out_long_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prediction says microseconds, the devices take 50 ms: from the second inference on they run side by side."""
    core, devices = Core(), Devices()
    for name in ("LEFT", "RIGHT"):
        core.register_plugin(name, devices.plugin(name))
    monkeypatch.setattr("engine_hetero.network.request.time", SimpleNamespace(perf_counter_ns=devices.perf_counter_ns))
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["x"], ["b"])]
    for node, device in zip(nodes, ("LEFT", "RIGHT"), strict=True):
        node.metadata_props.add(key="affinity", value=device)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xab"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    proto = helper.make_model(graph, opset_imports=[onnx.OperatorSetIdProto(version=21)], ir_version=10)
    request = core.compile_model(proto, "HETERO:LEFT,RIGHT").create_infer_request()
    x = np.array([1, -2], np.float32)

    def infer() -> set[int]:
        devices.threads.clear()
        result = request.infer({"x": x})
        np.testing.assert_array_equal(result["a"], -x)
        np.testing.assert_array_equal(result["b"], np.abs(x))
        return set(devices.threads)

    own = {threading.get_ident()}
    assert infer() == own, "nothing is known yet but the prediction"
    devices.barrier = threading.Barrier(2)
    for _ in range(3):
        assert len(infer()) == 2
    devices.barrier, devices.seconds = None, SHORT
    for _ in range(5):
        infer()
    assert infer() == own, "they are short now, and a hop would take longer"
