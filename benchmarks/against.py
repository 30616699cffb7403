"""Tells whether a change made models faster or slower: this checkout against another revision, in one run.

    python benchmarks/against.py HEAD~1                                # before a kernel change is committed: HEAD
    python benchmarks/against.py main --models resnet50,bert_base --rounds 20

The other revision is checked out beside this one and compiled. Each model has a process of each, which sleeps while the
other runs; blocks of inferences alternate, with the order reversed in every round. A difference counts if it has the
same sign in so many rounds that chance would give it to a model in less than one of twenty runs (sign test, two-sided):
the clock and the neighbours of a shared machine change from block to block, but not in favour of one side. With six
rounds, the fewest, all of them must agree. Exit code 1: a model is slower; repeat with that model, since one of several
may be by chance.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from comparison.engines import Setup
from comparison.measure import OURS
from comparison.worker import Worker

from engine.testing.networks import NETWORKS, SeededNetwork, seeded_network

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("resnet50", "mobilenet_v2", "efficientnet_b0", "unet", "bert_base", "vit_b16", "convnext_t", "lstm")
LEVEL = 0.05
MIN_DIFFERENCE = 0.01
"""Differences below this share are not reported, however certain."""


def main() -> int:
    options = parsed()
    setup = Setup(options.threads, "f32", effort="quick")
    slower = []
    with checkout(options.revision) as tree, tempfile.TemporaryDirectory() as folder:
        print(f"{'model':20} {'before':>9} {'now':>9} {'before/now':>10}  rounds faster")
        for name in options.models:
            before, now = measured(seeded_network(name), Path(folder), [tree, ROOT], setup, options.rounds)
            ratios = [a / b for a, b in zip(before, now, strict=True)]
            ratio, wins = statistics.median(ratios), sum(ratio > 1 for ratio in ratios)
            verdict = verdict_of(ratios)
            slower += [name] * (verdict == "slower")
            times = f"{statistics.median(before):7.3f}ms {statistics.median(now):7.3f}ms"
            print(f"{name:20} {times} {ratio:9.3f}x  {wins}/{len(ratios)} {verdict}", flush=True)
    return 1 if slower else 0


def verdict_of(ratios: Sequence[float]) -> str:
    """Judge ratios of rounds, more than 1 where faster: `faster`, `slower`, or empty if they can be chance."""
    ratio, wins = statistics.median(ratios), sum(ratio > 1 for ratio in ratios)
    if sign_test(wins, len(ratios)) >= LEVEL or abs(ratio - 1) < MIN_DIFFERENCE:
        return ""
    return "faster" if ratio > 1 else "slower"


def sign_test(wins: int, rounds: int) -> float:
    """The probability that fair coins are at least so one-sided."""
    most = max(wins, rounds - wins)
    tail = sum(math.comb(rounds, k) for k in range(most, rounds + 1)) / 2**rounds
    return min(1.0, 2 * tail)


def measured(
    network: SeededNetwork, folder: Path, trees: Sequence[Path], setup: Setup, rounds: int
) -> tuple[list[float], ...]:
    """The median milliseconds of each block, for each tree."""
    onnx.save(network.model, folder / "model.onnx")
    np.savez(folder / "inputs.npz", **network.inputs)
    times: tuple[list[float], ...] = tuple([] for _ in trees)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(OURS, setup, [tree, tree / "plugins/cpu/src"])) for tree in trees]
        for worker, tree in zip(workers, trees, strict=True):
            location = Path(worker.start()["location"])
            if location.resolve() != (tree / "engine").resolve():
                raise RuntimeError(f"the process for {tree} imported {location}")
            worker.call("load", path=str(folder / "model.onnx"))
            worker.call("bind", inputs=str(folder / "inputs.npz"))
        for turn in range(rounds):
            order = range(len(trees)) if turn % 2 == 0 else reversed(range(len(trees)))
            for index in order:
                time.sleep(0.2)
                block = workers[index].call("latency", seconds=0.5, warm_up=2, clock="wall")["seconds"]
                times[index].append(statistics.median(block) * 1e3)
    return times


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Another revision in a folder of its own, compiled; a compiler cache makes this quick."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            build = [sys.executable, "setup.py", "build_ext", "--inplace"]
            subprocess.run(build, cwd=tree, check=True, stdout=subprocess.DEVNULL)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="what to compare with: HEAD if the change is not committed")
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if sign_test(options.rounds, options.rounds) >= LEVEL:
        parser.error(f"--rounds {options.rounds}: expected at least 6, or no difference can count")
    if unknown := [name for name in options.models if name not in NETWORKS]:
        parser.error(f"--models: {', '.join(unknown)}: expected some of {', '.join(NETWORKS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
