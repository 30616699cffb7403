"""Checks this engine on one published model: results on each device beside onnxruntime's, blobs, state, nodes."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from exporting.check import tolerance_of

from engine import Core, ExecutableNetwork
from engine.cli.diff import find_difference, open_side
from engine.errors import EngineError
from publishing.inputs import Feed, Inputs, inputs_of
from publishing.widened import widened, widened_feed

STEPS = 20
JUDGE = "TEMPLATE"
NODES = "each node"
_FACTOR = 4


@dataclass(slots=True)
class OnDevice:
    """The findings of one device.

    Attributes:
        problem: why there is no result, or how it is wrong; empty if it is right.
        error: the largest deviation from onnxruntime, relative to the largest value.
        judged_by: what decided between this engine and onnxruntime, if they differ by more than rounding.
        blob: how the network of an imported blob differs; empty if its results are equal bit by bit.
        steps: inferences with state that were compared.
        parts: of HETERO: the number of subgraphs by device.
    """

    problem: str = ""
    error: float = 0.0
    judged_by: str = ""
    blob: str = ""
    steps: int = 0
    parts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Checked:
    """The findings for one model.

    Attributes:
        name: its path within the folder of packages.
        megabytes: the size of the file.
        tolerance: how far two correct results may deviate.
        two_lengths: whether an open length was varied.
        nodes: what an inference on CPU runs: kernels, and nodes on the reference evaluator.
        evaluated: the latter: operator -> number.
        devices: the findings by device.
        figures: by engine, what `publishing.first` measures.
        measured_on: the machine of the figures, and the versions of the peers.
    """

    name: str
    megabytes: float = 0.0
    tolerance: float = 0.0
    two_lengths: bool = False
    nodes: int = 0
    evaluated: dict[str, int] = field(default_factory=dict)
    devices: dict[str, OnDevice] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    measured_on: str = ""

    def to_json(self) -> dict[str, Any]:
        """Every figure."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Checked:
        """The inverse of `to_json`."""
        return cls(**{**found, "devices": {name: OnDevice(**each) for name, each in found["devices"].items()}})


def check(folder: Path, path: Path, devices: Sequence[str]) -> Checked:
    """Check one model on devices."""
    name = path.relative_to(folder).as_posix()
    session = open_session(path)
    inputs = inputs_of(path, name, session.get_inputs())
    found = Checked(name, path.stat().st_size / 1e6, tolerance_of(path), inputs.has_two_lengths)
    expected = [session.run(None, feed) for feed in inputs.feeds]
    states = run_states(lambda feed: session.run(None, feed), session.get_outputs(), inputs)
    core = Core()
    core.set_property({"CACHE_DIR": ""})  # compiling is what is checked
    _count_nodes(found, path, inputs, core)
    judge = _Judge(path, inputs, core)
    for device in devices:
        found.devices[device] = _on_device(core, path, device, inputs, (expected, states), found.tolerance, judge)
    return found


def open_session(path: Path, level: str = "ORT_ENABLE_ALL") -> Any:
    """The model in onnxruntime, on one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _count_nodes(found: Checked, path: Path, inputs: Inputs, core: Core) -> None:
    """Count the kernels, and the nodes on the reference evaluator, of an inference on CPU, once its plans are made."""
    try:
        request = core.compile_model(path, "CPU", {"PERF_COUNT": True}).create_infer_request()
        for _ in range(2):
            request.infer(inputs.feeds[0])
    except EngineError:
        return  # as the devices say
    records = request.profiling_info.nodes
    found.nodes = len(records)
    found.evaluated = dict(Counter(each.op_type for each in records if each.status == "reference"))


def run_states(run: Any, outputs: Sequence[Any], inputs: Inputs) -> list[list[Any]]:
    """The results of steps whose states are passed on, with other values in each step; empty without states."""
    if not inputs.states:
        return []
    first = inputs.feeds[0]
    indices = {name: [each.name for each in outputs].index(output) for name, output in inputs.states.items()}
    feed, results, rng = dict(first), [], np.random.default_rng(7)
    for _ in range(STEPS):
        results.append(run(feed))
        factor = np.float32(0.5 + rng.random())
        feed = {name: results[-1][indices[name]] if name in indices
                else value * factor if value.dtype == np.float32 else value
                for name, value in first.items()}  # fmt: skip
    return results


def _on_device(
    core: Core, path: Path, device: str, inputs: Inputs, right: tuple[Any, Any], tolerance: float, judge: _Judge
) -> OnDevice:
    found, (expected, states) = OnDevice(), right
    try:
        network = core.compile_model(path, device)
        if network.plugin.name == "HETERO":
            found.parts = dict(Counter(network.get_property("SUBGRAPH_DEVICES")))
        call = _caller(network)
        results = [call(feed) for feed in inputs.feeds]
        for index, (answer, other) in enumerate(zip(results, expected, strict=True)):
            _judge(found, answer, other, tolerance, judge, index, device)
        if not found.problem and states:
            _judge_steps(found, run_states(call, network.outputs, inputs), states, tolerance, judge)
        found.blob = _blob_difference(core, network, inputs.feeds[0], results[0])
    except EngineError as e:
        found.problem = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
    return found


def _caller(network: ExecutableNetwork) -> Any:
    request = network.create_infer_request()
    return lambda feed: list(request.infer(feed).values())


def _blob_difference(core: Core, network: ExecutableNetwork, feed: Feed, results: list[Any]) -> str:
    blob = io.BytesIO()
    network.export_model(blob)
    again = _caller(core.import_model(blob.getvalue()))(feed)
    if network.plugin.name == "AUTO":  # which may be on another device by now
        return ""
    return "" if all(map(_is_equal, again, results)) else "other results"


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other, equal_nan=other.dtype.kind == "f"))
    return bool(one == other)


def _judge(
    found: OnDevice, answer: list[Any], other: list[Any], tolerance: float, judge: _Judge, index: int, device: str
) -> None:
    """Compare with onnxruntime; where they differ by more than rounding, the third result decides."""
    for position, (one, right) in enumerate(zip(answer, other, strict=True)):
        gap, text = difference(one, right)
        found.error = max(found.error, gap)
        if gap <= tolerance and not text:
            continue
        truth, found.judged_by = judge.output(index, position)
        if text or truth is None:
            found.problem = text or f"output {position} deviates from onnxruntime's by {gap:.1e}"
            return
        ours, theirs = difference(one, truth)[0], judge.rounding(index, position, right)
        if ours > max(tolerance, _FACTOR * theirs):
            if judge.nodes_are_right(device, index):
                found.judged_by = NODES
                continue
            found.problem = (f"output {position} deviates from onnxruntime's by {gap:.1e}; from {judge.name}'s by "
                             f"{ours:.1e}, and other evaluations by {theirs:.1e}")  # fmt: skip
            return


def _judge_steps(
    found: OnDevice, answer: list[list[Any]], right: list[list[Any]], tolerance: float, judge: _Judge
) -> None:
    for step, (one, other) in enumerate(zip(answer, right, strict=True)):
        gaps = [difference(a, b) for a, b in zip(one, other, strict=True)]
        if any(gap > 4 * tolerance or text for gap, text in gaps):
            steps = judge.steps()
            truth = steps[step] if steps else other
            ours, theirs = (max(difference(a, b)[0] for a, b in zip(each, truth, strict=True)) for each in (one, other))
            found.judged_by = judge.name
            if ours > max(4 * tolerance, 2 * theirs):
                found.problem = f"step {step} deviates by {ours:.1e}, onnxruntime by {theirs:.1e}, from {judge.name}"
                return
    found.steps = len(answer)


def difference(one: Any, right: Any) -> tuple[float, str]:
    """How far a result is from another, relative to its largest value, and any other error."""
    if isinstance(right, list):
        pairs = [difference(a, b) for a, b in zip(one, right, strict=True)]
        return max((gap for gap, _ in pairs), default=0.0), next((text for _, text in pairs if text), "")
    if isinstance(right, dict):
        if list(one) != list(right):
            return 0.0, f"keys {list(one)}, expected {list(right)}"
        return difference(np.array(list(one.values())), np.array(list(right.values())))
    if one.shape != right.shape:
        return 0.0, f"shape {one.shape}, expected {right.shape}"
    if right.dtype.kind != "f":
        wrong = int(np.count_nonzero(one != right))
        return (float(wrong / max(right.size, 1)), "")
    if not np.array_equal(np.isfinite(one), np.isfinite(right)):
        return 0.0, "other values are infinite or not numbers"
    finite = np.isfinite(right)
    if not finite.any():
        return 0.0, ""
    gap = np.abs(one[finite].astype(np.float64) - right[finite]).max()
    return float(gap / max(np.abs(right[finite]).max(), 1e-30)), ""


class _Judge:
    """The results that decide: of the model in f64 on TEMPLATE, or where it has no f64, of the model as it is."""

    def __init__(self, path: Path, inputs: Inputs, core: Core) -> None:
        self._path, self._inputs, self._core = path, inputs, core
        self._call: Any = None
        self._results: dict[int, list[Any]] = {}
        self._others: dict[int, list[list[Any]]] = {}
        self._outputs: Sequence[Any] = ()
        self._steps: list[list[Any]] | None = None
        self.name = ""

    def _open(self) -> None:
        if self._call is not None:
            return
        try:
            network = self._core.compile_model(widened(self._path), JUDGE)
            call = _caller(network)
            call(widened_feed(self._inputs.feeds[0]))
            self._call, self.name = (lambda feed: call(widened_feed(feed))), "f64"
        except EngineError:
            network = self._core.compile_model(self._path, JUDGE)
            self._call, self.name = _caller(network), JUDGE
        self._outputs = network.outputs

    def output(self, index: int, position: int) -> tuple[Any, str]:
        """One output for a feed, and the name of the decider; None if the model runs on neither."""
        try:
            self._open()
            if index not in self._results:
                self._results[index] = self._call(self._inputs.feeds[index])
        except EngineError:
            return None, ""
        return self._results[index][position], self.name

    def rounding(self, index: int, position: int, right: Any) -> float:
        """The largest deviation of evaluations in f32 that add in other orders: the effect of rounding on a model."""
        truth, feed = self._results[index][position], self._inputs.feeds[index]
        if index not in self._others:
            found = [
                open_session(self._path, level).run(None, feed) for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC")
            ]
            with contextlib.suppress(EngineError):
                plain = self._core.compile_model(self._path, JUDGE, {"TEMPLATE_TRANSFORMATIONS": False})
                found.append(_caller(plain)(feed))
            self._others[index] = found
        values = [right, *(each[position] for each in self._others[index])]
        return max(difference(value, truth)[0] for value in values)

    def nodes_are_right(self, device: str, index: int) -> bool:
        """Whether rounding explains the device's results, with every node compared alone: see `engine.cli.diff`."""
        sides = (open_side(self._core, name, {}) for name in (device, JUDGE))
        return not find_difference(self._core.read_model(self._path), *sides, self._inputs.feeds[index]).differs

    def steps(self) -> list[list[Any]]:
        """The steps with state; empty if the model does not run."""
        try:
            self._open()
            if self._steps is None:
                self._steps = run_states(self._call, self._outputs, self._inputs)
        except EngineError:
            return []
        return self._steps
