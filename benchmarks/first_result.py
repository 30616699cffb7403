"""Measures the time from the start of a process to its first result: this engine in three ways, and onnxruntime.

    python benchmarks/first_result.py                                   # the models of compare.py
    python benchmarks/first_result.py --models mlp,resnet50,resnet50:static --rounds 3
    python benchmarks/first_result.py --sweep FOLDER                    # NAME.onnx with NAME.npz
    python benchmarks/first_result.py --against HEAD~1                  # also another revision, in the same run

The ways: `cold` compiles the model without a cache, `cached` finds it in CACHE_DIR, and `blob` imports what
`engine compile` wrote. Each measurement is a whole process with the engine's defaults: it imports what it needs, reads
the inputs, loads the model, infers once, and reports. The processes of a round run one after another, and the order
changes with each round; medians are printed. A first round, which is not counted, writes bytecode and fills the page
cache; its results are compared with onnxruntime's. Memory is the peak of the process at its first result.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from against import checkout
from compare import MODELS, cpu_model, exported, names
from comparison.forms import FORMS, in_form

from engine.testing.networks import NETWORKS, SeededNetwork, seeded_network

ROOT = Path(__file__).resolve().parent.parent
PEER: Final = "onnxruntime"
_READ: Final = """
import sys, numpy
model, blob, cache, *files = sys.argv[1:]
feed = {path.rpartition("/")[2][:-4]: numpy.load(path) for path in files}
"""
_REPORT: Final = """
import json, os, resource, time
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps({"at": time.time(), "cpu": time.process_time(), "megabytes": peak}), flush=True)
"""
_RUN: Final = {
    PEER: """
import onnxruntime
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
results = dict(zip([output.name for output in session.get_outputs()], session.run(None, feed)))
""",
    "cold": """
from engine import Core
network = Core().compile_model(model, "CPU", {"CACHE_DIR": ""})
results = network(feed)
""",
    "cached": """
from engine import Core
network = Core().compile_model(model, "CPU", {"CACHE_DIR": cache})
results = network(feed)
""",
    "blob": """
from engine import Core
network = Core().import_model(blob)
results = network(feed)
""",
}
WAYS: Final = tuple(way for way in _RUN if way != PEER)
_SAVE: Final = """
numpy.savez(os.environ["FIRST_RESULT"], *(numpy.asarray(results[name]) for name in sorted(results)))
"""
_EXPORT: Final = "from engine import Core; Core().compile_model(model, 'CPU', {'CACHE_DIR': ''}).export_model(blob)"
_TOLERANCE: Final = 0.02
"""Of the largest value. It tells that the processes computed; tests check accuracy. 8 bits differ so much by kernel."""


@dataclass(frozen=True, slots=True)
class First:
    """Of one process: seconds to the first result, CPU seconds until then, and peak memory in MiB."""

    seconds: float
    cpu: float
    megabytes: float


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: a way to run a model, in a checkout; `column` is its name in the tables."""

    column: str
    way: str
    tree: Path


class Files:
    """A model and its inputs in files, and what the ways make of it in each checkout."""

    def __init__(self, folder: Path, network: SeededNetwork) -> None:
        self._folder = folder
        self.model = folder / "model.onnx"
        onnx.save(network.model, self.model)
        self.inputs = []
        for name, array in network.inputs.items():
            self.inputs.append(folder / f"{name}.npy")
            np.save(self.inputs[-1], array)

    def arguments(self, case: Case) -> list[str]:
        """Of a process: the model, the blob and the cache of the checkout, and the inputs."""
        of_tree = self._folder / f"tree{hash(case.tree) & 0xFFFFFFFF}"
        of_tree.mkdir(exist_ok=True)
        return [str(self.model), str(of_tree / "network.blob"), str(of_tree / "cache"), *map(str, self.inputs)]


def main() -> int:
    options = parsed()
    tables: dict[str, dict[str, First]] = {}
    with contextlib.ExitStack() as stack:
        cases = [Case(PEER, PEER, ROOT), *(Case(way, way, ROOT) for way in options.ways)]
        if options.against:
            tree = stack.enter_context(checkout(options.against))
            cases += [Case(f"{way} before", way, tree) for way in options.ways]
        for name in options.models:
            with tempfile.TemporaryDirectory() as folder:
                tables[name] = measured(Files(Path(folder), read(name, options.sweep)), cases, options.rounds)
            print(name, *(f"{column} {first.seconds:.3f} s" for column, first in tables[name].items()), flush=True)
    columns = [case.column for case in cases]
    print(f"\n{cpu_model()}, {os.cpu_count()} cores, medians of {options.rounds} processes\n\n{times(tables, columns)}")
    print(f"\nCPU seconds\n\n{figures(tables, columns, lambda first: f'{first.cpu:.2f}')}")
    print(f"\nPeak memory, MiB\n\n{figures(tables, columns, lambda first: f'{first.megabytes:.0f}')}")
    if options.json:
        found = {name: {column: vars_of(first) for column, first in row.items()} for name, row in tables.items()}
        options.json.write_text(json.dumps({"cpu": cpu_model(), "models": found}, indent=1))
    return 0


def read(name: str, sweep: Path | None) -> SeededNetwork:
    """A model by its name, with `:` and one of `FORMS` for a narrower type."""
    if sweep is not None:
        return exported(sweep, name)
    base, _, form = name.partition(":")
    network = seeded_network(base)
    return in_form(network, form) if form else network


def measured(files: Files, cases: Sequence[Case], rounds: int) -> dict[str, First]:
    """The medians of each case. Raises `RuntimeError` if a process fails, or if results differ from the peer's."""
    found: dict[str, list[First]] = defaultdict(list)
    expected: list[Any] | None = None
    for case in cases:
        if case.way == "blob":
            run(_READ + _EXPORT, files, case)
        results = checked(files, case)
        expected = results if expected is None else expected
        for got, want in zip(results, expected, strict=True):
            if not np.allclose(got, want, rtol=0, atol=_TOLERANCE * max(1.0, float(np.abs(want).max(initial=0)))):
                raise RuntimeError(f"{case.column} and {PEER} differ by {np.abs(got - want).max()}")
    for turn in range(rounds):
        for case in cases[turn % len(cases) :] + cases[: turn % len(cases)]:
            start = time.time()
            seen = json.loads(run(_READ + _RUN[case.way] + _REPORT, files, case))
            found[case.column].append(First(seen["at"] - start, seen["cpu"], seen["megabytes"]))
    return {column: median(firsts) for column, firsts in found.items()}


def checked(files: Files, case: Case) -> list[Any]:
    """The results of a process that is not measured, in the order of their names."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        run(_READ + _RUN[case.way] + "import os\n" + _SAVE, files, case, {"FIRST_RESULT": file.name})
        with np.load(file.name) as arrays:
            return [arrays[name].astype(np.float64) for name in arrays.files]


def run(code: str, files: Files, case: Case, environment: Mapping[str, str] | None = None) -> str:
    """What a process prints that runs `code` with the engine of the case's checkout."""
    paths = [case.tree, case.tree / "plugins/cpu/src"]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), **(environment or {})}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-W", "ignore", "-c", code, *files.arguments(case)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{case.column}: {done.stderr}")
    return done.stdout


def median(firsts: Sequence[First]) -> First:
    """The median of each figure."""
    return First(*(statistics.median(getattr(first, name) for first in firsts) for name in First.__slots__))


def vars_of(first: First) -> dict[str, float]:
    return {name: getattr(first, name) for name in First.__slots__}


def times(tables: Mapping[str, Mapping[str, First]], columns: Sequence[str]) -> str:
    """A table of seconds, each with its ratio to the peer's, and a row of geometric means of the ratios."""

    def ratio(row: Mapping[str, First], column: str) -> float:
        return row[column].seconds / row[PEER].seconds

    lines = list(header(columns))
    for name, row in tables.items():
        cells = [f"{row[PEER].seconds:.2f}"]
        cells += [f"{row[column].seconds:.2f} ({ratio(row, column):.2f})" for column in columns if column != PEER]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    means = [
        f"{math.exp(statistics.mean(math.log(ratio(row, column)) for row in tables.values())):.2f}"
        for column in columns
        if column != PEER
    ]
    return "\n".join([*lines, f"| geometric mean of ratios | | {' | '.join(means)} |"])


def figures(tables: Mapping[str, Mapping[str, First]], columns: Sequence[str], text: Any) -> str:
    """A table of `text(first)` for each model and column."""
    rows = [f"| {name} | {' | '.join(text(row[column]) for column in columns)} |" for name, row in tables.items()]
    return "\n".join([*header(columns), *rows])


def header(columns: Sequence[str]) -> Iterator[str]:
    """The first two lines of a table."""
    yield f"| model | {' | '.join(columns)} |"
    yield "|---" * (1 + len(columns)) + "|"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", type=names, default=None, help=f"separated by commas; NAME:FORM for one of {', '.join(FORMS)}"
    )
    parser.add_argument("--sweep", type=Path, metavar="FOLDER", help="models of this folder: NAME.onnx with NAME.npz")
    parser.add_argument("--ways", type=names, default=list(WAYS), help=f"any of {', '.join(WAYS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--against", metavar="REVISION", help="also measure this revision, which is compiled first")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: expected at least 1")
    if unknown := [way for way in options.ways if way not in WAYS]:
        parser.error(f"--ways: {', '.join(unknown)}: expected any of {', '.join(WAYS)}")
    if options.sweep is not None:
        known = sorted(path.stem for path in options.sweep.glob("*.onnx") if path.with_suffix(".npz").exists())
    else:
        known = [*NETWORKS, *(f"{name}:{form}" for name in NETWORKS for form in FORMS)]
    options.models = options.models or (list(MODELS) if options.sweep is None else known)
    if unknown := [name for name in options.models if name not in known]:
        parser.error(f"--models: {', '.join(unknown)}: expected some of {', '.join(known)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
