"""The command: `python -m tests.fuzz graphs --seed 1 --seconds 600`, in the root of the checkout."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from .supervisor import Report, run_cases
from .worker import DEVICES

GENERATORS = (
    "graphs", "structures", "mutants", "blame", "blobs", "seals", "load", "interrupts", "serving", "requests",
)  # fmt: skip


def main() -> int:
    """Run cases, and print each new kind of finding with the command that repeats it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, allow_abbrev=False)
    parser.add_argument("generator", choices=GENERATORS)
    parser.add_argument("--seed", type=int, default=0, help="the first case; the next ones follow (default: 0)")
    parser.add_argument("--cases", type=int, help="how many cases (default: as many as the time allows)")
    parser.add_argument("--seconds", type=float, help="for how long (default: until the cases have run, or 60 s)")
    parser.add_argument("--seeds", type=Path, help="a file with the seeds to run, one a line, instead of --seed")
    parser.add_argument("--devices", default=DEVICES, help=f"of TEMPLATE, CPU, HETERO, OPENCL (default: {DEVICES})")
    parser.add_argument("--save", type=Path, help="a folder for the files of cases with findings")
    parser.add_argument("--log", type=Path, help="a file to which findings are appended, one JSON object a line")
    options = parser.parse_args()
    module = importlib.import_module(f".{options.generator}", __package__)
    seconds = options.seconds or (None if options.cases or options.seeds else 60.0)
    seeds: Iterable[int] = itertools.count(options.seed)
    if options.seeds:
        seeds = [int(line) for line in options.seeds.read_text().split()]
    if options.cases:
        seeds = itertools.islice(seeds, options.cases)
    seen: Counter[str] = Counter()

    def on_case(report: Report) -> None:
        if not report.is_finding:
            return
        seen[report.outcome] += 1
        if options.log:
            with options.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(asdict(report)) + "\n")
        if seen[report.outcome] > 3:
            return
        print(f"\nseed {report.seed}: {report.outcome}\n{report.detail}")
        print(f"repeat: python -m tests.fuzz {options.generator} --seed {report.seed} --cases 1", flush=True)
        if options.save:
            print(f"files: {_save(options.generator, report.seed, options.save)}", flush=True)

    summary = run_cases(
        options.generator, seeds, limit=module.LIMIT, devices=options.devices, seconds=seconds, on_case=on_case,
        is_kept=module.IS_KEPT,
    )  # fmt: skip
    print(summary)
    return 1 if summary.findings else 0


def _save(generator: str, seed: int, folder: Path) -> Path:
    module = importlib.import_module(f".{generator}", __package__)
    target = folder / f"{generator}-{seed}"
    target.mkdir(parents=True, exist_ok=True)
    try:
        for name, data in module.files(seed).items():
            (target / name).write_bytes(data)
    except Exception as e:
        (target / "error.txt").write_text(f"the case cannot be written: {e!r}\n")
    return target


if __name__ == "__main__":
    sys.exit(main())
