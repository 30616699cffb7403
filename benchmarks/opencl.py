"""OPENCL against CPU, in one run: products, recurrent layers and networks, and the kernels of the slowest network.

python benchmarks/opencl.py                          # all products and networks; minutes
python benchmarks/opencl.py --small                  # the tests' sizes; seconds
python benchmarks/opencl.py --networks resnet50 --device OPENCL.1 --json opencl.json
python benchmarks/opencl.py --gpu --effort full      # on a GPU: products against the device's peak, networks in f32
                                                     # and f16 against PyTorch and onnxruntime, if installed
python benchmarks/opencl.py --counts                 # what networks cost on a large GPU, counted without one; seconds

Blocks of the two devices alternate, with a rest between them in which the other's threads go to sleep; each figure is
the median of its blocks' medians. The host's time is the time of a profiled inference without its kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from comparison.gpu_cases import gpu_cases, gpu_table
from comparison.report import markdown
from engine_opencl.large_gpu import planned
from onnx import ModelProto, TensorProto, helper, numpy_helper

from engine import Core
from engine.onnx.importer import read_model
from engine.testing.models import relative_error
from engine.testing.networks import NETWORKS, floating_point_operations, seeded_network

PRODUCTS = ((256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048), (1, 4096, 4096), (197, 768, 3072))
RECURRENT = (("LSTM", 1, 128), ("LSTM", 16, 256), ("GRU", 1, 128), ("GRU", 16, 256))
"""Operator, sequences and units."""
STEPS = 64
WHOLE = ("resnet50", "mobilenet_v2", "bert_base", "unet", "vit_b16")


@dataclass(slots=True)
class Kernel:
    """One launch of a profiled inference."""

    node: str
    op_type: str
    microseconds: float


@dataclass(slots=True)
class Case:
    """The results for one product or network."""

    name: str
    operations: int
    milliseconds: dict[str, float]
    error: float
    host_microseconds: float = 0.0
    kernels: list[Kernel] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """OPENCL's time divided by CPU's."""
        device, cpu = self.milliseconds.values()
        return device / cpu


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    if options.counts:
        print(counts(options.networks, small=options.small))
        return
    core = Core()
    name = core.get_property(options.device, "FULL_DEVICE_NAME")
    driver = core.get_property(options.device, "DRIVER_VERSION")
    if options.gpu:
        report_gpu(core, f"{name}, {driver}", options)
        return
    cases = []
    for size in [(64, 48, 80)] if options.small else PRODUCTS:
        model, inputs = product(*size)
        cases.append(measured(core, f"SGEMM {'x'.join(map(str, size))}", model, inputs, options))
    for op_type, sequences, units in [("LSTM", 2, 8)] if options.small else RECURRENT:
        model, inputs = recurrent(op_type, sequences, units)
        cases.append(measured(core, f"{op_type} {sequences}x{units}", model, inputs, options))
    for network in options.networks:
        seeded = seeded_network(network, small=options.small)
        cases.append(measured(core, network, seeded.model, seeded.inputs, options))
    networks = cases[-len(options.networks) :] if options.networks else cases
    slowest = max(networks, key=lambda case: case.ratio)
    print(f"{options.device}: {name}, {driver}\n")
    print(table(cases, options.device))
    print(f"\nThe kernels of {slowest.name}, which is slowest relative to CPU:\n")
    print(profile(slowest, options.top))
    if options.json is not None:
        found = {"device": name, "driver": driver, "cases": [asdict(case) for case in cases]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def counts(networks: Sequence[str], *, small: bool) -> str:
    """The cost of the plans of networks for a large GPU."""
    rows = []
    for name in networks:
        model = read_model(seeded_network(name, small=small).model)
        for precision in ("f32", "f16"):
            plan = planned(model, precision)
            local, kernel = plan.local_memory
            numbers = [len(plan.launches), f"{plan.moved_bytes / 1e6:.1f}", f"{local / 1024:.1f}", kernel]
            rows.append([name, precision, *map(str, numbers)])
    header = ["network", "precision", "launches", "MB moved", "local memory, KiB", "of kernel"]
    return markdown(header, rows)


def report_gpu(core: Core, device: str, options: argparse.Namespace) -> None:
    """Run the measurements that are meaningful only on a GPU."""
    peak, cases, left = gpu_cases(core, product, options)
    print(f"{options.device}: {device}; COMPILE_EFFORT {options.effort}\n")
    print(gpu_table(peak, cases))
    if left:
        print(f"\nNot measured, since {options.limit:g} s had passed: {'; '.join(left)}")
    if options.json is not None:
        found = {
            "device": device, "peak": peak, "effort": options.effort, "cases": [asdict(case) for case in cases],
            "left": left,
        }  # fmt: skip
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def product(m: int, k: int, n: int) -> tuple[ModelProto, list[np.ndarray]]:
    """[M, K] times [K, N]; both are inputs."""
    given = [helper.make_tensor_value_info(x, TensorProto.FLOAT, s) for x, s in (("x", (m, k)), ("y", (k, n)))]
    result = helper.make_tensor_value_info("z", TensorProto.FLOAT, (m, n))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "y"], ["z"])], "product", given, [result])
    random = np.random.default_rng(0)
    values = [random.standard_normal(shape, np.float32) for shape in ((m, k), (k, n))]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), values


def recurrent(op_type: str, sequences: int, units: int) -> tuple[ModelProto, list[np.ndarray]]:
    """A layer over sequences of as many inputs as units, whose weights let states neither grow nor vanish."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (STEPS, sequences, units))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (STEPS, 1, sequences, units))
    random = np.random.default_rng(0)
    shape = (1, {"LSTM": 4, "GRU": 3}[op_type] * units, units)
    weights = [numpy_helper.from_array(random.standard_normal(shape, np.float32) / units**0.5, n) for n in "wr"]
    node = helper.make_node(op_type, ["x", "w", "r"], ["y"], hidden_size=units)
    graph = helper.make_graph([node], "recurrent", [given], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, [random.standard_normal((STEPS, sequences, units), np.float32)]


def measured(core: Core, name: str, model: ModelProto, inputs: Any, options: argparse.Namespace) -> Case:
    """Measure times, the deviation of the results, and a profiled inference."""
    effort = {"COMPILE_EFFORT": options.effort}
    requests = {d: core.compile_model(model, d, effort).create_infer_request() for d in (options.device, "CPU")}
    answers = []
    for request in requests.values():
        request.infer(inputs)
        answers.append([np.array(value) for value in request.results.values()])
    error = max(relative_error(found, right) for found, right in zip(*answers, strict=True))
    medians: dict[str, list[float]] = {device: [] for device in requests}
    for _ in range(options.rounds):
        for device, request in requests.items():
            time.sleep(options.rest)
            medians[device].append(block(request, inputs, options.seconds))
    case = Case(name, floating_point_operations(model), {d: statistics.median(ms) for d, ms in medians.items()}, error)
    profiled(core, case, model, inputs, options)
    return case


def block(request: Any, inputs: Any, seconds: float) -> float:
    """The median milliseconds of inferences within `seconds`; the first, which wakes threads, is untimed."""
    request.infer(inputs)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begun = time.perf_counter()
        request.infer(inputs)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


def profiled(core: Core, case: Case, model: ModelProto, inputs: Any, options: argparse.Namespace) -> None:
    """The fastest of several inferences, kernel by kernel, measured by the device's clock."""
    request = core.compile_model(
        model, options.device, {"PERF_COUNT": True, "COMPILE_EFFORT": options.effort}
    ).create_infer_request()
    best = float("inf")
    for _ in range(options.rounds + 1):
        begun = time.perf_counter_ns()
        request.infer(inputs)
        spent = time.perf_counter_ns() - begun
        if spent < best:
            best = spent
            nodes = request.profiling_info.nodes
            case.kernels = [Kernel(n.name, n.op_type, n.duration_ns / 1e3) for n in nodes if n.status == "native"]
    case.host_microseconds = best / 1e3 - sum(kernel.microseconds for kernel in case.kernels)


def table(cases: Sequence[Case], device: str) -> str:
    rows = []
    for case in cases:
        ours = case.milliseconds[device]
        rows.append([
            case.name, f"{ours:.2f}", f"{case.milliseconds['CPU']:.2f}", f"{case.ratio:.2f}",
            f"{case.operations / ours / 1e6:.0f}", f"{case.host_microseconds:.0f}", str(len(case.kernels)),
            f"{case.error:.1e}",
        ])  # fmt: skip
    header = [f"{device} (ms)", "CPU (ms)", "ratio", "GFLOP/s", "host (us)", "kernels", "error"]
    return markdown(["case", *header], rows)


def profile(case: Case, top: int) -> str:
    total = sum(kernel.microseconds for kernel in case.kernels)
    by_time = sorted(case.kernels, key=lambda kernel: -kernel.microseconds)
    rows = [[k.node, k.op_type, f"{k.microseconds:.1f}", f"{k.microseconds / total:.1%}"] for k in by_time[:top]]
    sums: Mapping[str, float] = {
        op: sum(k.microseconds for k in case.kernels if k.op_type == op) for op in {k.op_type for k in case.kernels}
    }
    rows += [["all of", op, f"{spent:.1f}", f"{spent / total:.1%}"] for op, spent in sorted(sums.items())]
    return markdown(["node", "operator", "us", "of the kernels' time"], rows)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="OPENCL", help="OPENCL, or OPENCL.1 and so on")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(WHOLE))
    parser.add_argument("--small", action="store_true", help="the tests' sizes")
    parser.add_argument("--counts", action="store_true", help="count launches, bytes and local memory, without a GPU")
    parser.add_argument("--gpu", action="store_true", help="run the product and the networks for GPUs")
    parser.add_argument("--peer-device", choices=("cuda", "cpu"), default="cuda", help="where other engines run")
    parser.add_argument("--effort", choices=("none", "quick", "full"), default="none", help="COMPILE_EFFORT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="duration of a block")
    parser.add_argument("--rest", type=float, default=0.1, help="seconds between blocks")
    parser.add_argument("--limit", type=float, help="with --gpu: begin no case after so many seconds")
    parser.add_argument("--top", type=int, default=15, help="kernels in the profile")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
