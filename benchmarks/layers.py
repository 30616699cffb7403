"""The time of an inference on CPU, step by step: use this if `compare.py` shows that a model is too slow.

    python benchmarks/layers.py resnet50                # the 25 longest steps
    python benchmarks/layers.py bert_base --top 0 --effort full
    python benchmarks/layers.py unet --by kernel

Each step's time is the minimum of many inferences. Operations are counted for the direct algorithm; the share is
relative to the multiply-add peak, which is measured in the same run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from comparison.peak import Peak
from comparison.report import markdown

from engine import Core
from engine.testing.networks import NETWORKS, seeded_network


@dataclass(slots=True)
class StepTime:
    """One step, or the sum of several."""

    node: str
    kernel: str
    microseconds: float
    operations: float
    count: int = 1


def main() -> None:
    options = parsed()
    network = seeded_network(options.model, small=options.small)
    config = {
        "PERF_COUNT": True, "INFERENCE_NUM_THREADS": options.threads, "COMPILE_EFFORT": options.effort,
        "INFERENCE_PRECISION_HINT": options.precision,
    }  # fmt: skip
    compiled = Core().compile_model(network.model, "CPU", config)
    request = compiled.create_infer_request()
    best: list[int] = []
    for _ in range(options.rounds):
        request.infer(network.inputs)
        times = [node.duration_ns for node in request.profiling_info.nodes]
        best = [min(pair) for pair in zip(best, times, strict=True)] if best else times
    nodes = request.profiling_info.nodes
    infos = [info for plan in compiled.native_plans() for info in plan.steps]  # type: ignore[attr-defined]
    kernels = {info.name: info for info in infos}
    steps = []
    for node, nanoseconds in zip(nodes, best, strict=True):
        info = kernels.get(node.name)
        kernel = info.kernel if info is not None and node.status == "native" else node.status
        steps.append(StepTime(node.name, f"{node.op_type}: {kernel}", nanoseconds / 1e3, info.work if info else 0.0))
    with Peak(options.threads) as peak:
        peak.measure()
        print(table(grouped(steps) if options.by == "kernel" else steps, peak.best.get(options.precision), options.top))


def grouped(steps: Iterable[StepTime]) -> list[StepTime]:
    """The sums by operator and kernel."""
    sums: dict[str, StepTime] = {}
    for step in steps:
        total = sums.setdefault(step.kernel, StepTime("", step.kernel, 0.0, 0.0, 0))
        total.microseconds += step.microseconds
        total.operations += step.operations
        total.count += step.count
    return list(sums.values())


def table(steps: list[StepTime], peak: float | None, top: int) -> str:
    total = sum(step.microseconds for step in steps)
    rows = []
    for step in sorted(steps, key=lambda step: -step.microseconds)[: top or None]:
        rate = step.operations / step.microseconds / 1e3 if step.microseconds else 0.0
        share = f"{rate / peak:.0%}" if peak and rate else "-"
        rows.append([step.node or f"{step.count} steps", step.kernel, f"{step.microseconds:.1f}",
                     f"{step.microseconds / total:.1%}", f"{rate:.0f}", share])  # fmt: skip
    rows.append(["all", f"{sum(step.count for step in steps)} steps", f"{total:.1f}", "", "", ""])
    return markdown(["node", "operator: kernel", "us", "of the time", "GFLOP/s", "of the peak"], rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=NETWORKS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--effort", default="quick", help="COMPILE_EFFORT")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--top", type=int, default=25, help="0 for all")
    parser.add_argument("--by", choices=("step", "kernel"), default="step")
    parser.add_argument("--small", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
