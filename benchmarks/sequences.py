"""Tokens per second of many sequences in one batch, by `engine.generation.Scheduler`, beside one sequence at a time.

    python benchmarks/sequences.py                          # 1, 2, 4 and 8 sequences; 300 M parameters with 8 bits
    python benchmarks/sequences.py --models tiny --forms f32 --slots 1,8

Each number of sequences runs in turns with the others. Prompts have different lengths, around `--context`.

A second table has, for each number of slots, the time of a token of one sequence, while the other slots are empty, and
the times between its tokens, while a prompt of `--prompt` tokens joins: the longest one, and the median.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from comparison.report import markdown
from generating.models import MODELS, write_model

from engine import Core
from engine.generation import Scheduler
from engine.native import cpu_features
from engine.passes import MakeStateful


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--models", default="llama300m", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--forms", default="int8", help="of f32, int8, int4, int4a8")
    parser.add_argument("--slots", default="1,2,4,8", help="numbers of sequences")
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32, help="of each sequence")
    parser.add_argument("--prompt", type=int, default=1024, help="the length of a prompt that joins a running sequence")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--folder", help="where models are written and kept; default: a temporary folder")
    options = parser.parse_args()
    counts = [int(each) for each in options.slots.split(",")]
    print(f"CPU: {cpu_features().model}; tokens per second after prompts of about {options.context} tokens\n")
    rows, waits = [], []
    with tempfile.TemporaryDirectory() as made:
        for name in options.models.split(","):
            for form in options.forms.split(","):
                path = Path(options.folder or made) / f"{name}-{form}-positions" / "model.onnx"
                if not path.exists():
                    write_model(MODELS[name], form, path.parent, has_positions=True)
                rates, others = measured(path, counts, MODELS[name].vocabulary, options)
                cells = [f"{rates[count]:.1f} ({rates[count] / rates[counts[0]]:.2f}x)" for count in counts]
                rows.append([f"{name}, {form}", *cells])
                waits.append([f"{name}, {form}", *(shown(others[count]) for count in counts)])
    print(markdown(["model", *(f"{count} sequences" for count in counts)], rows))
    print()
    print(markdown(["model: ms of a token; longest, median between two", *(f"{n} slots" for n in counts)], waits))


def shown(times: list[tuple[float, float, float]]) -> str:
    """The medians of the rounds, in ms."""
    token, longest, usual = (median(each) * 1e3 for each in zip(*times, strict=True))
    return f"{token:.1f}; {longest:.1f}, {usual:.1f} ({longest / usual:.1f}x)"


def measured(
    path: Path, counts: list[int], vocabulary: int, options: argparse.Namespace
) -> tuple[dict[int, float], dict[int, list[tuple[float, float, float]]]]:
    core = Core()
    model = core.read_model(path)
    MakeStateful().run_on_model(model)
    network = core.compile_model(model, "CPU")
    schedulers = {count: Scheduler(network, count) for count in counts}
    rates: dict[int, list[float]] = {count: [] for count in counts}
    others: dict[int, list[tuple[float, float, float]]] = {count: [] for count in counts}
    for turn in range(options.rounds + 1):
        for count, scheduler in schedulers.items():
            rate = run(scheduler, count, vocabulary, options)
            if turn:  # plans are made in the first one
                rates[count].append(rate)
            times = alone(scheduler, count, vocabulary, options)
            if turn:
                others[count].append(times)
    for scheduler in schedulers.values():
        scheduler.close()
    return {count: median(found) for count, found in rates.items()}, others


def run(scheduler: Scheduler, count: int, vocabulary: int, options: Any) -> float:
    """Tokens per second from the moment at which all sequences have their first one."""
    random = np.random.default_rng(count)
    lengths = [max(1, options.context + 3 * index - count) for index in range(count)]
    prompts = [random.integers(0, vocabulary, length).tolist() for length in lengths]
    streams = [scheduler.submit(prompt, options.tokens) for prompt in prompts]
    tokens = [iter(stream) for stream in streams]
    for each in tokens:
        next(each)
    before = sum(len(stream.tokens) for stream in streams)
    begin = time.perf_counter()
    for stream in streams:
        stream.result()
    return (sum(len(stream.tokens) for stream in streams) - before) / (time.perf_counter() - begin)


def alone(scheduler: Scheduler, slots: int, vocabulary: int, options: Any) -> tuple[float, float, float]:
    """The time of a token of one sequence, then the longest and the median one while another prompt joins."""
    random = np.random.default_rng(0)
    running = scheduler.submit(random.integers(0, vocabulary, options.context).tolist(), 1 << 20)
    tokens = iter(running)

    def gap() -> float:
        begin = time.perf_counter()
        next(tokens)
        return time.perf_counter() - begin

    next(tokens)
    token = median(gap() for _ in range(options.tokens))
    other = scheduler.submit(random.integers(0, vocabulary, options.prompt).tolist(), options.tokens)
    gaps = [gap()]
    while slots > 1 and len(other.tokens) < options.tokens:
        gaps.append(gap())
    other.cancel()
    running.cancel()
    return token, max(gaps), median(gaps)


if __name__ == "__main__":
    main()
