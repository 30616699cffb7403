"""Compares this engine with onnxruntime and openvino, on the same models and inputs, in one run.

    python benchmarks/compare.py                                 # f32 latency, 2 threads, all models
    python benchmarks/compare.py --precision bf16                # against openvino, which supports bf16
    python benchmarks/compare.py --form static                   # models quantized to 8 bits by onnxruntime
    python benchmarks/compare.py --streams 2 --models resnet50,mobilenet_v2
    python benchmarks/compare.py --small --rounds 1              # a quick check that takes seconds
    python benchmarks/compare.py --sweep FOLDER                  # the networks that architectures.py exported there
    python benchmarks/compare.py --baseline                      # fails if a ratio is below the one in record.json
    python benchmarks/compare.py --record                        # keeps higher ratios; --accept-losses lower ones, too
    python benchmarks/compare.py --baseline --sweep FOLDER --zoo published

Each engine has a process, which sleeps while another runs; blocks of inferences alternate, with a rest before each, and
medians are reported. All engines must agree on the outputs first. `docs/performance.md` explains the tables.
The exit status is 1 if outputs are wrong, or if a ratio to the faster peer is below the record beyond noise.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from comparison.engines import CLOCKS, ENGINES, Setup
from comparison.forms import FORMS
from comparison.measure import ModelResult, Procedure, measure_model
from comparison.peak import Peak
from comparison.record import add_record_options, check_record_options, compared_with_record, entry_of, kind_of_run
from comparison.report import cost_table, losers_table, problems, speed_table, write_json

from engine.cli.benchmark.statistics import MIN_BLOCKS
from engine.testing.networks import NETWORKS, SeededNetwork, seeded_network

ZOOS = ("architectures", "exports", "published")
"""What makes networks for --sweep: architectures.py, exports.py and published.py."""
MODELS = (
    "resnet50", "mobilenet_v2", "efficientnet_b0", "efficientnet_lite0", "unet", "squeezenet", "densenet121", "vgg19",
    "bert_base", "gpt2_blocks", "vit_b16", "convnext_t", "lstm", "mlp",
)  # fmt: skip


def main() -> int:
    options = parsed()
    setup = Setup(options.threads, options.precision, options.streams, options.device, options.effort)
    procedure = Procedure(options.engines, setup, options.rounds, options.block_seconds, options.rest, options.loads,
                          options.clock, options.form, options.sweep is not None)  # fmt: skip
    results = []
    read = partial(seeded_network, small=options.small) if options.sweep is None else partial(exported, options.sweep)
    with Peak(options.threads) as peak:
        peak.measure()
        for name in options.models:
            begin = time.perf_counter()
            results.append(measure_model(name, read(name), procedure))
            peak.measure()
            report_progress(results[-1], time.perf_counter() - begin)
    kind = options.form or options.precision
    print(f"\n{cpu_model()}, {options.threads} threads, {kind}, " + ", ".join(
        f"{precision} peak {figure:.0f} GFLOP/s" for precision, figure in peak.best.items()))  # fmt: skip
    print(f"\n{speed_table(results, options.precision, peak.best, options.streams)}\n")
    if options.sweep is not None:
        print(f"{losers_table(results)}\n")
    elif not options.streams:
        print(f"{cost_table(results)}\n")
    is_lost = False
    if options.baseline:
        run = kind_of_run(kind, zoo=options.zoo or "", threads=options.threads, clock=options.clock)
        table, is_lost = compared_with_record(
            {result.name: entry_of(result) for result in results}, options.baseline, run,
            record=options.record, accept_losses=options.accept_losses,
        )  # fmt: skip
        print(f"{table}\n")
    for problem in problems(results):
        print(problem)
    if options.json:
        about = {
            "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": platform.platform()},
            "peak_gflops": peak.best,
            "options": {key: str(value) for key, value in vars(options).items()},
        }
        write_json(options.json, about, results)
    wrong = [result.name for result in results for e in result.engines.values() if e.agrees is False]
    return 1 if wrong or is_lost else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names, default=None, help="separated by commas")
    parser.add_argument("--sweep", type=Path, metavar="FOLDER", help="NAME.onnx with NAME.npz; the slowest ones first")
    parser.add_argument("--zoo", choices=ZOOS, help="the networks of --sweep, for the record")
    parser.add_argument(
        "--engines", type=listed(ENGINES), default=None, help=f"any of {', '.join(ENGINES)}, separated by commas"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument(
        "--form", choices=FORMS, default="", help="quantize or convert the models first; the f32 models also run"
    )
    parser.add_argument("--streams", type=int, default=0, help="measure throughput with this many inferences in flight")
    parser.add_argument("--rounds", type=int, help="blocks of each engine; by default 5, 6 with --baseline")
    parser.add_argument("--block-seconds", type=float, default=0.4)
    parser.add_argument("--rest", type=float, default=0.3, help="seconds before each block")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a busy machine, with one thread")
    parser.add_argument("--loads", type=int, default=3, help="number of fresh processes in which loading is timed")
    parser.add_argument("--device", default="CPU", help="the device of this engine")
    parser.add_argument("--effort", default="quick", help="COMPILE_EFFORT of this engine")
    parser.add_argument("--small", action="store_true", help="the small version of each model")
    add_record_options(parser)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    options = parser.parse_args()
    check_record_options(parser, options, ("engines", "streams", "device", "effort", "small"))
    if options.baseline and (options.zoo is None) != (options.sweep is None):
        parser.error("--baseline: expected --sweep and --zoo, or neither")
    if options.rounds is None:
        options.rounds = MIN_BLOCKS if options.baseline else 5
    if options.engines is None:
        options.engines = [name for name in ENGINES if options.precision == "f32" or name != "onnxruntime"]
    known = (
        NETWORKS
        if options.sweep is None
        else sorted(path.stem for path in options.sweep.glob("*.onnx") if path.with_suffix(".npz").exists())
    )
    if not known:
        parser.error(f"--sweep: {options.sweep} has no NAME.onnx with NAME.npz")
    if options.models is None:
        options.models = list(MODELS if options.sweep is None else known)
    if unknown := [name for name in options.models if name not in known]:
        parser.error(f"--models: {', '.join(unknown)}: expected some of {', '.join(known)}")
    return options


def exported(folder: Path, name: str) -> SeededNetwork:
    """A network of a sweep."""
    with np.load(folder / f"{name}.npz") as inputs:
        return SeededNetwork(onnx.load(folder / f"{name}.onnx"), dict(inputs))


def names(text: str) -> list[str]:
    return text.split(",")


def listed(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a parser of names separated by commas, all of which must be in `known`."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(known)}")
        return names

    return parse


def report_progress(result: ModelResult, seconds: float) -> None:
    figures = []
    for name, found in result.engines.items():
        figure = found.milliseconds if found.rate is None else found.rate
        unit = "ms" if found.rate is None else "/s"
        text = found.problem or f"{figure:.3f} {unit}, error {found.error:.1e}"
        figures.append(f"{name} {text}")
    print(f"{result.name}: {'; '.join(figures)} [{seconds:.0f} s]", flush=True)


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
