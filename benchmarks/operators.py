"""Times the cases of the operator suite on a device against onnxruntime, those with the lowest ratio first.

    python benchmarks/operators.py [DEVICE] [--only Conv,MatMul] [--rounds 7] [--least-us 50]

A case is one node. Its time includes a few microseconds of request overhead, so cases that take less than `--least-us`
in both engines say little and are omitted. Blocks of both engines alternate with a rest between them, since spinning
threads of one slow down the other; medians are reported.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import onnxruntime

from engine import Core
from engine.onnx import model_to_proto
from engine.ops.cases import OperatorCase, all_cases
from engine.plugin_api import SupportLevel

REST_SECONDS = 0.02
BLOCK_SECONDS = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("device", nargs="?", default="CPU", help="default: CPU")
    parser.add_argument("--only", default="", help="operators, separated by commas; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--least-us", type=float, default=50.0)
    arguments = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    core, wanted = Core(), set(filter(None, arguments.only.split(",")))
    rows = []
    for case in all_cases().values():
        if wanted and case.op_type not in wanted:
            continue
        for engines in _engines(core, case, arguments.device):
            ours, peer = _medians(engines, arguments.rounds)
            if max(ours, peer) * 1e6 >= arguments.least_us:
                rows.append((peer / ours, case.name, ours, peer))
    print(f"{'onnxruntime / ' + arguments.device:>20} {arguments.device + ' us':>12} {'onnxruntime us':>15}  case")
    for ratio, name, ours, peer in sorted(rows):
        print(f"{ratio:>20.2f} {ours * 1e6:>12.1f} {peer * 1e6:>15.1f}  {name}")


def _engines(core: Core, case: OperatorCase, device: str) -> Iterator[tuple[Callable[[], Any], Callable[[], Any]]]:
    """Functions that run a case in both engines; nothing if one of them does not support it."""
    model, feeds = case.model()
    answer = core.query_model(model, device)
    if not feeds or len(answer.at(SupportLevel.NATIVE)) < max(1, len(answer.nodes)):
        return
    data = model_to_proto(model).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        session.run(None, feeds)
    except Exception:  # onnxruntime raises its own classes for operators that it does not implement
        return
    request = core.compile_model(model, device).create_infer_request()
    yield (lambda: request.infer(feeds)), (lambda: session.run(None, feeds))


def _medians(engines: tuple[Callable[[], Any], Callable[[], Any]], rounds: int) -> tuple[float, float]:
    """The median seconds of an inference of each engine, in alternating blocks."""
    counts = []
    for run in engines:
        run()
        start = time.perf_counter()
        run()
        counts.append(max(1, int(BLOCK_SECONDS / max(time.perf_counter() - start, 1e-7))))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for run, count, taken in zip(engines, counts, times, strict=True):
            time.sleep(REST_SECONDS)
            start = time.perf_counter()
            for _ in range(count):
                run()
            taken.append((time.perf_counter() - start) / count)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
