"""Tokens per second of many sequences in one batch, by `engine.generation.Scheduler`, beside one sequence at a time.

    python benchmarks/sequences.py                          # 1, 2, 4 and 8 sequences; 300 M parameters with 8 bits
    python benchmarks/sequences.py --models tiny --forms f32 --slots 1,8

Each number of sequences runs in turns with the others. Prompts have different lengths, around `--context`.
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
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--folder", help="where models are written and kept; default: a temporary folder")
    options = parser.parse_args()
    counts = [int(each) for each in options.slots.split(",")]
    print(f"CPU: {cpu_features().model}; tokens per second after prompts of about {options.context} tokens\n")
    rows = []
    with tempfile.TemporaryDirectory() as made:
        for name in options.models.split(","):
            for form in options.forms.split(","):
                path = Path(options.folder or made) / f"{name}-{form}-positions" / "model.onnx"
                if not path.exists():
                    write_model(MODELS[name], form, path.parent, has_positions=True)
                rates = measured(path, counts, MODELS[name].vocabulary, options)
                cells = [f"{rates[count]:.1f} ({rates[count] / rates[counts[0]]:.2f}x)" for count in counts]
                rows.append([f"{name}, {form}", *cells])
    print(markdown(["model", *(f"{count} sequences" for count in counts)], rows))


def measured(path: Path, counts: list[int], vocabulary: int, options: argparse.Namespace) -> dict[int, float]:
    core = Core()
    model = core.read_model(path)
    MakeStateful().run_on_model(model)
    network = core.compile_model(model, "CPU")
    schedulers = {count: Scheduler(network, count) for count in counts}
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(options.rounds + 1):
        for count, scheduler in schedulers.items():
            rate = run(scheduler, count, vocabulary, options)
            if turn:  # plans are made in the first one
                rates[count].append(rate)
    for scheduler in schedulers.values():
        scheduler.close()
    return {count: median(found) for count, found in rates.items()}


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


if __name__ == "__main__":
    main()
