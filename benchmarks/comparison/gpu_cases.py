"""Measurements for a GPU: products as a share of the device's peak, and networks against other engines.

Of f16, weights and intermediate values are f16, inputs and outputs f32.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from engine_opencl.devices.device import device_of
from onnx import ModelProto, numpy_helper

from comparison.gpu import measured_peak, peers
from comparison.report import markdown
from comparison.torch_modules import torch_products, torch_runs
from engine import Core
from engine.testing.models import relative_error
from engine.testing.networks import floating_point_operations, seeded_network

_CHECKED_ROWS = 16


@dataclass(slots=True)
class GpuCase:
    """The results for one model.

    Attributes:
        milliseconds: by engine, from host memory to host memory.
        resident: by engine, with input and output on the device; for OPENCL, the time of its kernels.
    """

    name: str
    operations: int
    milliseconds: dict[str, float]
    resident: dict[str, float]
    error: float
    choices: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


SIZES = (1024, 2048, 4096, 8192)
NETWORK_CASES = (
    ("gpt2_blocks", 1), ("resnet50", 1), ("unet", 1), ("bert_base", 1), ("vit_b16", 1),
    ("resnet50", 32), ("mobilenet_v2", 1), ("mobilenet_v2", 32),
)  # fmt: skip
"""Network and batch; first those that have changed since the figures of docs/performance.md."""
PRECISIONS = ("f32", "f16")


def gpu_cases(
    core: Core, product: Callable[..., Any], options: argparse.Namespace
) -> tuple[float, list[GpuCase], list[str]]:
    """The device's peak in GFLOP/s, the cases, and those for which `options.limit` (s) left no time.

    `product` builds the model of a product.
    """
    end = math.inf if options.limit is None else time.monotonic() + options.limit
    peak = measured_peak(device_of(options.device.partition(".")[2]), options.rounds)
    planned: list[tuple[str, Callable[[], GpuCase]]] = []
    networks = [("mobilenet_v2", 1)] if options.small else NETWORK_CASES
    for (name, images), precision in itertools.product(networks, PRECISIONS):
        run = partial(_network_case, core, name, images, precision, options)
        planned.append((f"{name}, batch {images}, {precision}", run))
    for size, precision in itertools.product([96] if options.small else SIZES, PRECISIONS):
        run = partial(_product_case, core, product, size, precision, options)
        planned.append((f"product of size {size}, {precision}", run))
    for images in (1, 2) if options.small else (1, 32):
        planned.append((f"ResNet-50, {images} images", partial(_checked_case, core, images, options)))
    cases, left = [], []
    for title, run in planned:
        if time.monotonic() >= end:
            left.append(title)
        else:
            cases.append(run())
    return peak, cases, left


def _product_case(
    core: Core, product: Callable[..., Any], size: int, precision: str, options: argparse.Namespace
) -> GpuCase:
    """Checks only some rows, since the host would take long for all of them."""
    model, inputs = product(size, size, size)
    ours = _Ours(core, model, inputs, options, precision)
    x, y = inputs
    rows = slice(0, _CHECKED_ROWS)
    error = relative_error(ours.answer[0][rows], x[rows].astype(np.float64) @ y)
    taken, notes = _torch(lambda: torch_products(size, options.peer_device), precision)
    milliseconds = _median({options.device: ours.infer}, options)
    resident = ours.resident(options) | _median(taken, options)
    name, operations = f"product of size {size}, {precision}", floating_point_operations(model)
    return GpuCase(name, operations, milliseconds, resident, error, ours.choices, notes)


def _torch(
    make: Callable[[], dict[str, Callable[[], object]]], precision: str
) -> tuple[dict[str, Callable[[], object]], list[str]]:
    """PyTorch's functions for a precision by their names, or why there are none."""
    try:
        made = make()
    except (ImportError, RuntimeError, AssertionError) as e:
        return {}, [f"PyTorch is not available: {str(e).splitlines()[0]}"]
    return {f"PyTorch {kind}": run for kind, run in made.items() if (kind == "f16") == (precision == "f16")}, []


def _network_case(core: Core, name: str, images: int, precision: str, options: argparse.Namespace) -> GpuCase:
    """A network against PyTorch's module for it, which runs on random weights."""
    model, inputs, operations = batch_of(name, images, small=options.small)
    ours = _Ours(core, model, inputs, options, precision)
    expected = core.compile_model(model, "CPU")(inputs).values()
    error = max(relative_error(found, right) for found, right in zip(ours.answer, expected, strict=True))
    taken, notes = _torch(lambda: {} if options.small else torch_runs(name, images, options.peer_device), precision)
    milliseconds = _median({options.device: ours.infer}, options)
    resident = ours.resident(options) | _median(taken, options)
    title = f"{name}, batch {images}, {precision}"
    return GpuCase(title, images * operations, milliseconds, resident, error, ours.choices, notes)


def _checked_case(core: Core, images: int, options: argparse.Namespace) -> GpuCase:
    """ResNet-50 with the same weights in all engines, whose answers are compared."""
    model, inputs, operations = batch_of("resnet50", images, small=options.small)
    others, notes = peers(model, options.peer_device)
    ours = _Ours(core, model, inputs, options)
    expected = [np.array(value) for value in core.compile_model(model, "CPU")(inputs).values()]
    answers = {options.device: ours.answer, **{peer.name: peer.infer(inputs) for peer in others}}
    errors = {
        name: max(relative_error(found, right) for found, right in zip(answer, expected, strict=True))
        for name, answer in answers.items()
    }
    notes += [f"{name} deviates by {e:.1e}" for name, e in errors.items() if e > 1e-2]
    runs: dict[str, Callable[[], object]] = {options.device: ours.infer}
    for peer in others:
        runs[peer.name] = lambda peer=peer: peer.infer(inputs)
    on_device = {peer.name: run for peer in others if (run := peer.resident(inputs)) is not None}
    milliseconds = _median(runs, options)
    resident = ours.resident(options) | _median(on_device, options)
    name, error = f"ResNet-50, {images} images", errors[options.device]
    return GpuCase(name, images * operations, milliseconds, resident, error, ours.choices, notes)


def batch_of(name: str, images: int, *, small: bool) -> tuple[ModelProto, dict[str, np.ndarray], int]:
    """A network for a batch of `images`, and the number of operations for one. Batches are for networks of images."""
    seeded = seeded_network(name, small=small)
    if images == 1:
        return seeded.model, dict(seeded.inputs), floating_point_operations(seeded.model)
    model = ModelProto()
    model.CopyFrom(seeded.model)
    graph = model.graph
    graph.ClearField("value_info")
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = images
    shapes = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    for weight in graph.initializer:
        if weight.name in shapes:
            lengths = numpy_helper.to_array(weight).copy()
            lengths[0] = images
            weight.CopyFrom(numpy_helper.from_array(lengths, weight.name))
    inputs = {
        name: np.concatenate([np.roll(x, i, axis=-1) for i in range(images)]) for name, x in seeded.inputs.items()
    }
    return model, inputs, floating_point_operations(seeded.model)


class _Ours:
    """OPENCL with one model, with and without profiling."""

    def __init__(
        self, core: Core, model: ModelProto, inputs: Any, options: argparse.Namespace, precision: str = "f32"
    ) -> None:
        config = {"COMPILE_EFFORT": options.effort, "INFERENCE_PRECISION_HINT": precision}
        network = core.compile_model(model, options.device, config)
        self.choices = list(network.get_metric("KERNEL_CHOICES"))
        self._request, self._inputs = network.create_infer_request(), inputs
        profiled = core.compile_model(model, options.device, {**config, "PERF_COUNT": True})
        self._profiled = profiled.create_infer_request()
        self.infer()
        self.answer = [np.array(value) for value in self._request.results.values()]

    def infer(self) -> None:
        """Run once, from host memory to host memory."""
        self._request.infer(self._inputs)

    def resident(self, options: argparse.Namespace) -> dict[str, float]:
        """The minimum milliseconds from the start of the first kernel to the end of the last."""
        spans = []
        for _ in range(3 * options.rounds):
            self._profiled.infer(self._inputs)
            nodes = [node for node in self._profiled.profiling_info.nodes if node.status == "native"]
            spans.append(max(n.start_ns + n.duration_ns for n in nodes) - min(n.start_ns for n in nodes))
        return {options.device: min(spans) / 1e6}


def _median(runs: Mapping[str, Callable[[], object]], options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of each: the median of its blocks' medians; blocks alternate, and their first runs are untimed."""
    medians: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            time.sleep(options.rest)
            run()
            times: list[float] = []
            end = time.perf_counter() + options.seconds
            while not times or time.perf_counter() < end:
                begun = time.perf_counter()
                run()
                times.append(time.perf_counter() - begun)
            medians[name].append(statistics.median(times))
    return {name: statistics.median(each) * 1e3 for name, each in medians.items()}


def gpu_table(peak: float, cases: list[GpuCase]) -> str:
    """A row for each engine of each case."""
    rows = []
    for case in cases:
        ours = next(iter(case.milliseconds))
        for name in dict.fromkeys((*case.milliseconds, *case.resident)):
            spent, inside = case.milliseconds.get(name), case.resident.get(name)
            rows.append([
                case.name, name, "-" if spent is None else f"{spent:.3f}", "-" if inside is None else f"{inside:.3f}",
                "-" if inside is None else f"{case.operations / inside / 1e6:.0f}",
                "-" if inside is None else f"{case.operations / inside / 1e6 / peak:.0%}",
                "-" if spent is None else f"{spent / case.milliseconds[ours]:.2f}",
                "-" if inside is None else f"{inside / case.resident[ours]:.2f}",
                f"{case.error:.1e}" if name == ours else "",
            ])  # fmt: skip
    header = ["case", "engine", "host to host (ms)", "on the device (ms)", "GFLOP/s", "of the peak",
              "to OPENCL, host to host", "to OPENCL, on the device", "error"]  # fmt: skip
    notes = dict.fromkeys(note for case in cases for note in case.notes)
    return "\n\n".join([f"Measured peak of f32 multiply-adds: {peak:.0f} GFLOP/s", markdown(header, rows), *notes])
