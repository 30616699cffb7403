"""Compares two threads with one on small models, while other processes use the cores.

    python benchmarks/busy.py                                      # beside 0, 2 and 8 busy processes
    python benchmarks/busy.py --models mlp,mobilenet_v2 --processes 8 --large

Both networks are in one process; blocks of their inferences alternate, with the order reversed in every round. The
table has the median over the blocks of the mean time of an inference. Two threads should never take much longer than
one.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from compare import cpu_model, names

from engine import Core, ExecutableNetwork
from engine.testing.networks import NETWORKS, SeededNetwork, seeded_network

MODELS = ("mlp", "lstm", "squeezenet", "mobilenet_v2", "resnet50", "bert_base")
THREADS = (1, 2)


def main() -> int:
    options = parsed()
    rows = []
    for count in options.processes:
        for name in options.models:
            network = seeded_network(name, small=not options.large)
            with busy(count):
                one, two = measured(network, options.rounds, options.block_seconds)
            rows.append(f"| {count} | {name} | {one * 1e3:.3f} | {two * 1e3:.3f} | {two / one:.2f} |")
            print(f"{name} beside {count}: {two / one:.2f}", file=sys.stderr, flush=True)
    print(f"{cpu_model()}\n\n| busy processes | model | one thread, ms | two, ms | ratio |\n|---|---|---|---|---|")
    print("\n".join(rows))
    return 0


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that compute without end."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measured(network: SeededNetwork, rounds: int, block_seconds: float) -> list[float]:
    """The seconds of an inference with each number of threads."""
    core = Core()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(network.model, path)
        compiled = [core.compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": threads}) for threads in THREADS]
    blocks: list[list[float]] = [[] for _ in compiled]
    for turn in range(rounds):
        for index in range(len(compiled)) if turn % 2 == 0 else reversed(range(len(compiled))):
            blocks[index].append(block(compiled[index], network, block_seconds))
    return [statistics.median(times) for times in blocks]


def block(network: ExecutableNetwork, seeded: SeededNetwork, seconds: float) -> float:
    """The mean time of the inferences of a block."""
    request = network.create_infer_request()
    request.infer(seeded.inputs)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        request.infer(seeded.inputs)
        count += 1
    return (time.perf_counter() - start) / count


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names, default=list(MODELS), help="separated by commas")
    parser.add_argument("--processes", type=numbers, default=[0, 2, 8], help="numbers of busy processes")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--block-seconds", type=float, default=0.4)
    parser.add_argument("--large", action="store_true", help="the models in their full size")
    options = parser.parse_args()
    if unknown := [name for name in options.models if name not in NETWORKS]:
        parser.error(f"--models: {', '.join(unknown)}: expected some of {', '.join(NETWORKS)}")
    return options


def numbers(text: str) -> Sequence[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
