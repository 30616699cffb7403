"""The time of each layer of a network beside what it computes and moves, and the machine's peak."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from engine import ops
from engine.cli.benchmark.subject import Subject, core_of, device_of, open_subject
from engine.errors import EngineError
from engine.ir import Constant, Model, Node, Output, Parameter, Result, f32
from engine.passes.runtime_info import is_operation
from engine.passes.work import byte_size, work_of
from engine.runtime import NodeProfile
from engine.startup import dataclass

_PROFILED: Final = {"PERF_COUNT": "yes"}
_LENGTH: Final = 768
_PRODUCTS: Final = 20


@dataclass(frozen=True, slots=True)
class Layer:
    """A node of the compiled network, with what was fused into it.

    Attributes:
        status: "native", "reference", or the device's own term.
        kernel: the device's name of the kernel; empty if the device does not report it.
        milliseconds: the median over the profiled inferences.
        share: of the sum of all layers.
        operations: multiplications and additions of the direct algorithm; None for a blob, and for a name that the
            model does not have. A device that computes convolutions by Winograd's algorithm needs fewer.
        bytes: inputs from outside, weights and results that leave the layer; None as above.
        nodes: the nodes of a layer that the device ran as one without telling the time of each; otherwise empty.
    """

    name: str
    op_type: str
    status: str
    kernel: str
    milliseconds: float
    share: float
    operations: float | None
    bytes: float | None
    nodes: tuple[str, ...] = ()

    @property
    def gflops(self) -> float | None:
        """Billions of operations per second; None if unknown, or if there are none."""
        return self.operations / self.milliseconds / 1e6 if self.operations and self.milliseconds else None


def measure_layers(subject: Subject, inputs: Mapping[str, Any], runs: int = 20) -> list[Layer]:
    """Profile a subject of this engine, compiled again with PERF_COUNT; in execution order, empty if it records none.

    The profile costs time itself: layers of microseconds seem longer than they are.
    """
    opened = open_subject(subject, _PROFILED)
    request = opened.network.create_infer_request()
    request.infer(inputs)
    times: dict[str, list[int]] = {}
    about: dict[str, NodeProfile] = {}
    for _ in range(max(runs, 1)):
        request.infer(inputs)
        sums: dict[str, int] = {}
        for node in request.profiling_info.nodes:
            if not node.is_total:
                about.setdefault(node.name, node)
                sums[node.name] = sums.get(node.name, 0) + node.duration_ns
        for name, duration in sums.items():
            times.setdefault(name, []).append(duration)
    medians = {name: statistics.median(each) / 1e6 for name, each in times.items()}
    total = sum(medians.values()) or 1.0
    members = {name: node.nodes or (name,) for name, node in about.items()}
    work = {} if opened.model is None else work_by_name(opened.model, members)
    layers = []
    for name, node in about.items():
        operations, moved = work.get(name, (None, None))
        share = medians[name] / total
        layers.append(
            Layer(name, node.op_type, node.status, node.kernel, medians[name], share, operations, moved, node.nodes)
        )
    return layers


def work_by_name(model: Model, layers: Mapping[str, Sequence[str]]) -> dict[str, tuple[float, float]]:
    """Operations and bytes of layers: of the nodes that each names, and of the unnamed nodes that were fused into them.

    An unnamed node belongs to the first named node that is computed from it: kernels are named by the last node fused.
    """
    known = {name: layer for layer, names in layers.items() for name in names}
    owners: dict[Node, str] = {}
    for node in reversed([each for each in model.ordered_nodes() if is_operation(each)]):
        if node.friendly_name in known:
            owners[node] = known[node.friendly_name]
            continue
        readers = [use.node for output in node.outputs for use in output.target_inputs if use.node in owners]
        if readers:
            owners[node] = owners[readers[-1]]
    found = dict.fromkeys(owners.values(), (0.0, 0.0))
    members: dict[str, list[Node]] = {}
    for node, name in owners.items():
        members.setdefault(name, []).append(node)
    for name, nodes in members.items():
        operations = sum(work_of(node).operations for node in nodes)
        found[name] = operations, work_of(nodes[0]).bytes if len(nodes) == 1 else _bytes_outside(set(nodes))
    return found


def _bytes_outside(nodes: set[Node]) -> float:
    values: dict[Output, None] = {}
    for node in nodes:
        values |= {value: None for value in node.input_values if value is not None and value.node not in nodes}
        values |= {value: None for value in node.outputs if any(use.node not in nodes for use in value.target_inputs)}
    return float(sum(byte_size(value) for value in values))


def measure_peak(subject: Subject) -> float | None:
    """GFLOP/s of a large matrix product on the subject's device with its settings; None if the device cannot run one.

    It is what the device reaches in practice with its best kernel in the precision of the settings: the fastest of
    several runs, since disturbances only slow a machine down.
    """
    device = subject.device or device_of(subject.file)
    if device is None:
        return None
    x = Parameter(f32, [_LENGTH, _LENGTH], "x")
    weights = Constant(np.full((_LENGTH, _LENGTH), 1 / _LENGTH, np.float32))
    model = Model([Result(ops.MatMul(x, weights).output(0), "y")], [x], name="peak")
    core = core_of(subject)
    try:
        declared = core.supported_properties(device)
        settings = {**subject.config, **_PROFILED}
        config = {key: declared[key].parse(text) for key, text in settings.items() if key in declared}
        request = core.compile_model(model, device, config).create_infer_request()
        spent = [_product_time(request) for _ in range(_PRODUCTS)]
    except EngineError:
        return None
    return 2.0 * _LENGTH**3 / min(spent)


def _product_time(request: Any) -> float:
    """Nanoseconds of the product's layers."""
    request.infer({"x": np.ones((_LENGTH, _LENGTH), np.float32)})
    nodes: Sequence[NodeProfile] = request.profiling_info.nodes
    return float(sum(node.duration_ns for node in nodes if not node.is_total)) or float("inf")
