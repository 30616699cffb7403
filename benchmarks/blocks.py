"""Compares this engine with onnxruntime and openvino on random blocks of networks, such as a strided convolution.

    python benchmarks/blocks.py --count 500 --seed 1                # f32 latency, 2 threads, about 10 minutes
    python benchmarks/blocks.py --count 200 --precision bf16        # against openvino, which supports bf16
    python benchmarks/blocks.py --count 200 --form static           # quantized to 8 bits by onnxruntime
    python benchmarks/blocks.py --clock cpu --threads 1             # on a busy machine
    python benchmarks/blocks.py --only 17,203                       # these blocks of the seed alone
    python benchmarks/blocks.py --only 17 --save FOLDER             # NAME.onnx, NAME.npz for compare.py --sweep FOLDER
    python benchmarks/blocks.py --classes                           # how many blocks each class of steps has
    python benchmarks/blocks.py --baseline                          # fails if a class is below its record

The blocks are those that exporters write, of usual widths (16 to 2048), sizes (7 to 512) and batches (1 to 32), bounded
by their operations and bytes. Each class of steps has as many of them as another. Each engine has one process, blocks
of inferences alternate, and all engines must agree on the outputs first. Blocks that seem to lose are loaded and
measured again, for longer. The last tables list the classes with blocks that are slower than the faster peer, and these
blocks, with the share of the machine's limit: the time that the operations take at the peak, or the bytes of inputs,
weights and outputs at the read bandwidth of as many bytes, whichever is longer, divided by the time measured. The exit
status is 1 if an engine's outputs are wrong, or if the ratio of a class is below the record beyond noise.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from compare import cpu_model
from comparison.engines import CLOCKS, ENGINES, Setup
from comparison.forms import FORMS
from comparison.measure import Procedure
from comparison.peak import Peak
from comparison.read import ReadCurve
from comparison.record import add_record_options, check_record_options, compared_with_record, kind_of_run
from comparison.report import problems, write_json
from comparison.session import Session
from drawn.block import Block, draw_block, kind_of
from drawn.report import Measured, class_table, entries_of, loser_table, summary
from drawn.tolerance import block_tolerance

_UNCERTAIN = 1.05
"""Blocks with a lower ratio are measured again."""
_PEAK_EVERY = 25


def main() -> int:
    options = parsed()
    if options.classes:
        for kind, count in sorted(Counter(kind_of(options.seed, index) for index in options.only).items()):
            print(f"{count:4} {kind}")
        return 0
    if options.save is not None:
        return save(options)
    setup = Setup(options.threads, options.precision)
    procedure = Procedure(options.engines, setup, rest_seconds=options.rest, clock=options.clock, form=options.form)
    curve = ReadCurve(options.threads)
    begin = time.perf_counter()
    with Peak(options.threads) as peak, Session(procedure) as session:
        peak.measure()
        found = first = list(measured(options.only, options, session, peak))
        again = [each.block.index for each in found if each.ratio is not None and each.ratio < _UNCERTAIN]
        if options.second_rounds:
            print(f"\n{len(again)} of {len(found)} blocks are measured again", flush=True)
            longer = {each.block.index: each for each in measured(again, options, session, peak, is_second=True)}
            found = [longer.get(each.block.index, each) for each in found]
    limit = peak.best.get(options.precision, 0.0)
    print(f"\n{cpu_model()}, {options.threads} threads, {options.form or options.precision}, {options.clock} clock, "
          f"{limit:.0f} GFLOP/s, reads {curve}; {time.perf_counter() - begin:.0f} s")  # fmt: skip
    for each in found:
        each.set_limit(limit, curve.gigabytes)
    print(f"\n{summary(found)}\n\n{class_table(found)}\n\n{loser_table(found)}\n")
    is_lost = False
    if options.baseline:  # what the second pass measured is what seemed to lose, so it would raise the means
        run = kind_of_run(options.form or options.precision, zoo="blocks", threads=options.threads, clock=options.clock)
        table, is_lost = compared_with_record(
            entries_of(first, f"{options.count} of seed {options.seed}"), options.baseline, run,
            record=options.record, accept_losses=options.accept_losses,
        )  # fmt: skip
        print(f"{table}\n")
    results = [each.result for each in found]
    for problem in problems(results):
        print(problem)
    if options.json:
        about = {
            "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": platform.platform()},
            "peak_gflops": peak.best,
            "options": {key: str(value) for key, value in vars(options).items()},
            "blocks": [each.as_json() for each in found],
        }
        write_json(options.json, about, results)
    return 1 if is_lost or any(e.agrees is False for result in results for e in result.engines.values()) else 0


def measured(
    indices: Sequence[int], options: argparse.Namespace, session: Session, peak: Peak, *, is_second: bool = False
) -> Iterator[Measured]:
    """Measure each block, and print a line for each."""
    rounds = options.second_rounds if is_second else options.rounds
    seconds = options.block_seconds * (3 if is_second else 1)
    for count, index in enumerate(indices):
        block = draw_block(options.seed, index)
        tolerance = block_tolerance(block.network.model)
        result = session.measure(block.name, block.network, tolerance, rounds, seconds, by_type=is_second)
        found = Measured(block, result)
        print(f"{found.line()} | {block.kind}: {block.description}", flush=True)
        if count % _PEAK_EVERY == 0:
            peak.measure()
        yield found


def save(options: argparse.Namespace) -> int:
    """Write the blocks with their inputs, for `compare.py --sweep`."""
    options.save.mkdir(parents=True, exist_ok=True)
    for index in options.only:
        block: Block = draw_block(options.seed, index)
        onnx.save(block.network.model, options.save / f"{block.name}.onnx")
        np.savez(options.save / f"{block.name}.npz", **block.network.inputs)
        print(f"{block.name}: {block.description}")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=numbers, metavar="INDEX,..", help="these blocks instead of the first --count")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write the blocks, and measure nothing")
    parser.add_argument("--classes", action="store_true", help="count the blocks of each class, and measure nothing")
    parser.add_argument("--engines", type=lambda text: text.split(","), help=f"some of {', '.join(ENGINES)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--form", choices=FORMS, default="", help="quantize or convert the blocks first")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a busy machine, with one thread")
    parser.add_argument("--rounds", type=int, default=6, help="blocks of inferences of each engine")
    parser.add_argument("--second-rounds", type=int, default=9, help="where the engine seemed to lose; 0: none")
    parser.add_argument("--block-seconds", type=float, default=0.05)
    parser.add_argument("--rest", type=float, default=0.02, help="seconds before each block of inferences")
    add_record_options(parser)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    options = parser.parse_args()
    check_record_options(parser, options, ("only", "engines"))
    if options.engines is None:
        options.engines = [name for name in ENGINES if options.precision == "f32" or name != "onnxruntime"]
    if unknown := [name for name in options.engines if name not in ENGINES]:
        parser.error(f"--engines: {', '.join(unknown)}: expected some of {', '.join(ENGINES)}")
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu: expected --threads 1; the CPU time of several threads is not a latency")
    if options.only is None:
        options.only = list(range(options.count))
    return options


def numbers(text: str) -> list[int]:
    """Indices separated by commas."""
    found = [int(part) for part in text.split(",")]
    if any(index < 0 for index in found):
        raise argparse.ArgumentTypeError(f"{text}: expected indices of 0 and more")
    return found


if __name__ == "__main__":
    sys.exit(main())
