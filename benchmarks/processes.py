"""Memory of several processes that import one blob: BERT-base, read by each process, or mapped and so shared.

    python benchmarks/processes.py [--workers N] [--layers N] [--length N] [--lengths-vary]

Compiles a BERT-base encoder with seeded random weights for CPU, and starts 1 and N worker processes that import the
blob and run it. Linux divides each page among the processes that have it mapped (PSS, /proc/PID/smaps_rollup), so the
sum over processes is the memory that all of them take together.

- `total`: this sum, and its ratio to the sum of one separate worker that maps the blob - `blob`: the part of the sum
that is the mapped file - `private`: the memory that a worker shares with no other process: interpreter, libraries,
objects of the network, intermediate results

Workers are started from nothing (`separate`), or forked by a server process that has imported the network
(`forkserver`), which counts in the sum.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sharing.worker import INPUTS, wait_forked

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Memory:
    """In MB."""

    total: float
    blob: float
    private: float


def memory_of(workers: Sequence[int], others: Sequence[int], blob: str) -> Memory:
    """The memory of worker processes, and of others that they need."""
    total = of_blob = private = 0
    for process in (*workers, *others):
        summary = Path(f"/proc/{process}/smaps_rollup").read_text()
        total += _kilobytes(summary, "Pss")
        if process in workers:
            private = max(private, _kilobytes(summary, "Private_Dirty"))
        mappings = re.split(
            r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{process}/smaps").read_text(), flags=re.MULTILINE
        )
        of_blob += sum(_kilobytes(each, "Pss") for each in mappings if each.partition("\n")[0].endswith(blob))
    return Memory(*(1024 * kilobytes / 1e6 for kilobytes in (total, of_blob, private)))


def _kilobytes(text: str, key: str) -> int:
    return sum(int(found) for found in re.findall(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE))


def separate(blob: str, length: int, workers: int, is_mapped: bool) -> Memory:
    """The memory of processes that Python starts from nothing."""
    command = [sys.executable, "-m", "sharing.worker", blob, str(length), str(is_mapped)]
    with ExitStack() as stack:
        started = []
        for _ in range(workers):
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=FOLDER)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise SystemExit("a worker failed")
            started.append(process.pid)
        return memory_of(started, [], blob)


def forked(blob: str, length: int, workers: int) -> Memory:
    """The memory of processes that a fork server forks, with its own."""
    # The server ignores a module that it does not find.
    os.environ |= {"PYTHONPATH": str(FOLDER), "SHARED_BLOB": blob, "SHARED_LENGTH": str(length)}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sharing.preload"])
    ready, end = context.SimpleQueue(), context.Event()
    started = [context.Process(target=wait_forked, args=(length, ready, end)) for _ in range(workers)]
    for process in started:
        process.start()
    found = [ready.get() for _ in started]
    memory = memory_of([worker for worker, _ in found], [found[0][1]], blob)
    end.set()
    for process in started:
        process.join()
    return memory


def compile_blob(layers: int, length: int | None, folder: str) -> str:
    """The path of the blob of a BERT encoder, for one length or any."""
    import onnx
    from import_bert import bert  # imported here, since forked workers import this module

    from engine import Core

    model, blob = str(Path(folder) / "bert.onnx"), str(Path(folder) / "bert.blob")
    onnx.save(bert(layers), model)
    core = Core()
    read = core.read_model(model)
    if length is not None:
        read.reshape({name: [1, length] for name in INPUTS})
    core.compile_model(read, "CPU").export_model(blob)
    return blob


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--lengths-vary", action="store_true", help="compile for any batch and length")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        blob = compile_blob(options.layers, None if options.lengths_vary else options.length, folder)
        print(f"blob: {Path(blob).stat().st_size / 1e6:.0f} MB")
        rows = {
            f"{count} {name}": measure(blob, options.length, count, *arguments)
            for name, measure, *arguments in (
                ("separate, mapped", separate, True),
                ("separate, read", separate, False),
                ("forkserver, mapped", forked),
            )
            for count in (1, options.workers)
        }
    one = rows["1 separate, mapped"].total
    print(f"{'workers':24} {'total MB':>10} {'ratio':>6} {'blob MB':>8} {'private MB':>11}")
    for name, row in rows.items():
        print(f"{name:24} {row.total:10.0f} {row.total / one:6.2f} {row.blob:8.0f} {row.private:11.1f}")


if __name__ == "__main__":
    main()
