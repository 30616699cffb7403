"""Batch inference by workers of Ray Data: items per second of 1, 2, ... workers, beside the same network without Ray.

    python benchmarks/cluster.py [--workers 1 2] [--items N] [--batch N] [--layers N] [--length N]

Starts a local Ray, compiles a BERT-base encoder with seeded random weights once, and runs a dataset of random tokens
through a fixed number of workers of one thread each. The rate counts inferences, from the beginning of the first batch
to the end of the last one.

- `CPU`: the time of a core for one item, which other programs change less
- `Ray`: the share of the workers' time that is not inference
- `start`: the time before the first batch

The table ends with what the model on paper needs (docs/scaling.md): bytes per item, and the blocks per second that one
driver schedules, for a network that computes nearly nothing.

Other programs change the results; the load of the machine is also printed.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from engine_ray import predictor
from import_bert import WORDS, bert

from engine import Core, ops
from engine.ir import Model, Parameter, PartialShape, Result, f32
from engine.onnx import read_model


@dataclass(frozen=True, slots=True)
class Rate:
    """Items per second while workers compute, CPU seconds of an item, seconds before the first batch, busy seconds."""

    items: float
    cpu: float
    start: float
    seconds: float
    busy: float


def encoder(layers: int) -> Model:
    """BERT with the pooled output only, since the hidden states are many times larger than the inputs."""
    proto = bert(layers)
    del proto.graph.output[0]
    return read_model(proto)


def tokens(items: int, length: int) -> dict[str, Any]:
    ids = np.random.default_rng(0).integers(0, WORDS, (items, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def without_ray(model: Model, columns: dict[str, Any], batch: int) -> tuple[float, float]:
    """Items per second of one thread in this process, and CPU seconds of an item."""
    network = Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1})
    items = len(columns["input_ids"])
    parts = [{name: column[i : i + batch] for name, column in columns.items()} for i in range(0, items, batch)]
    network(parts[0])
    network(parts[-1])
    start, cpu = time.perf_counter(), time.thread_time()
    for part in parts:
        network(part)
    return items / (time.perf_counter() - start), (time.thread_time() - cpu) / items


def measure(made: Any, dataset: Any, workers: int, batch: int) -> Rate:
    class Timed(made):
        """Adds a column of CPU seconds; one thread computes a batch, the one that asks for it."""

        def __call__(self, batch: Any) -> Any:
            start = time.thread_time()
            results = super().__call__(batch)
            rows = len(results["pooled"])
            return {**results, "cpu": np.full(rows, (time.thread_time() - start) / rows)}

    start = time.perf_counter()
    results = Timed.predict(dataset, workers=workers, batch_size=batch).iter_batches(batch_size=None)
    cpu = float(np.concatenate([part["cpu"] for part in results]).mean())
    whole, progress = time.perf_counter() - start, made.progress()
    busy = sum(worker.busy_seconds for worker in progress.workers)
    return Rate(progress.items_per_second, cpu, whole - progress.seconds, progress.seconds, busy)


def blocks_per_second(blocks: int) -> float:
    """How many blocks one driver schedules for two workers whose inferences take next to no time."""
    x = Parameter(f32, PartialShape([None, 1]), "x")
    made = predictor(Model([Result(ops.Add(x, x), "y")], [x], name="nothing"))
    rows = [{"x": np.ones(1, np.float32)} for _ in range(blocks)]
    dataset = ray.data.from_items(rows, override_num_blocks=blocks).materialize()
    made.predict(dataset, workers=2, batch_size=1).materialize()
    return blocks / made.progress().seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--items", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=200, help="blocks of the measurement of scheduling")
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    model, columns = encoder(options.layers), tokens(options.items, options.length)
    base, cpu = without_ray(model, columns, options.batch)
    print(f"{'workers':>12} {'items/s':>8} {'ratio':>6} {'CPU':>7} {'Ray':>5} {'start':>8}")
    print(f"{'without Ray':>12} {base:8.2f} {1:6.2f} {cpu:5.2f} s")
    # More than the CPUs, so that reading does not wait for workers.
    ray.init("local", num_cpus=max(options.workers) + 1, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{name: column[i] for name, column in columns.items()} for i in range(options.items)]
    dataset = ray.data.from_items(rows, override_num_blocks=max(1, options.items // options.batch)).materialize()
    for workers in options.workers:
        rate = measure(predictor(model), dataset, workers, options.batch)
        lost = 1 - rate.busy / (rate.seconds * workers)
        times = f"{rate.items:8.2f} {rate.items / base:6.2f} {rate.cpu:5.2f} s {lost:5.0%} {rate.start:6.1f} s"
        print(f"{workers:12} {times}", flush=True)
    print(f"bytes per item: {dataset.size_bytes() / options.items:.0f} in, {4 * 768} out")
    print(f"blocks per second of one driver: {blocks_per_second(options.blocks):.0f}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    main()
