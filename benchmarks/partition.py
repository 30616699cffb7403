"""Measures the partitioner and HETERO: speed and scaling, memory, the published strategies, the closure, openvino's
HETERO on the same graphs, and the overhead of HETERO in an inference.

    python benchmarks/partition.py [--json FILE] [--rounds 3] [--most 1000000] [--only split peers ...]

openvino is optional; without it, its table is omitted. Seconds are medians of rounds; a million nodes run only once.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))

from partitions.inference import measure_inference
from partitions.models import measure_models
from partitions.peers import measure_peers
from partitions.split import measure_closure, measure_memory, measure_published, measure_random

SIZES = (1_000, 10_000, 100_000, 1_000_000)

Rows = list[dict[str, Any]]


def sections(sizes: list[int], rounds: int) -> dict[str, Callable[[], Rows]]:
    """The measurements, by name."""
    return {
        "split": lambda: measure_random(sizes, rounds),
        "models": lambda: measure_models(rounds),
        "memory": lambda: measure_memory([size for size in sizes if size >= 100_000]),
        "published": lambda: measure_published(1),
        "closure": lambda: measure_closure(rounds),
        "peers": lambda: measure_peers(sizes, rounds) if importlib.util.find_spec("openvino") else [],
        "inference": lambda: measure_inference(rounds),
    }


def table(rows: Rows) -> str:
    """Rows as a Markdown table; missing values are empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([_cell(row.get(name, "")) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if value >= 1 else f"{value:.3g}"
    return str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="number of nodes of the largest graph")
    parser.add_argument("--only", nargs="+", choices=sections([], 0), help="run only these measurements")
    arguments = parser.parse_args()
    measures = sections([size for size in SIZES if size <= arguments.most], arguments.rounds)
    results: dict[str, Any] = {"machine": {"cpu": platform.processor(), "cores": len(os.sched_getaffinity(0))}}
    for name in arguments.only or measures:
        rows = measures[name]()
        results[name] = rows
        print(f"\n{name}\n\n{table(rows) if rows else 'openvino is not installed'}", flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
