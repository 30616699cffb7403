"""Tokens of language models, beside onnxruntime-genai, openvino and llama.cpp: to the first one, and each after it.

    python benchmarks/generation.py                                  # Llama-like, 300 M parameters: f32 to int4
    python benchmarks/generation.py --models gpt2 --forms f32        # GPT-2, small
    python benchmarks/generation.py --models llama1b --rounds 0 --contexts 512 --tokens 64    # memory only
    python benchmarks/generation.py --engines engine --models tiny   # a quick look

Models have seeded weights, in the form of onnxruntime-genai's model builder, and for llama.cpp the same in a file of
its own; files are written to a folder once. Every engine runs in a process of its own, in alternating blocks with rests
between them, since one's spinning threads would slow the others. A round begins with a prompt of each context's length,
which gives the time to the first token, and goes on with a block of tokens. Times are the medians of the rounds; the
first round, in which engines prepare themselves, is not counted. "limit" is the time to read the weights once at the
best bandwidth measured in the same run. Memory is that after the last round.

OpenVINO runs the ONNX file; the same model in the form of its own exporter ("openvino-export"), for which it has a
faster attention; and that with the precisions that it chooses by default ("openvino-defaults"), which are lower.

llama.cpp's weights of 8 and 4 bits are Q8_0 and Q4_0: a scale for 32 weights rather than for 128, and activations of
8 bits. An engine that is not installed is left out, and the report says so. In f32, all engines must choose the same
tokens; the exit status is 1 if they do not.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from comparison.read import ReadBandwidth
from generating.engines import ENGINES
from generating.models import MODELS, write_model
from generating.report import OURS, Times, differing, lowering_line, memory_table, speed_table
from generating.worker import Worker

from engine.native import cpu_features

_REST_SECONDS = 0.5
FORMS = ("f32", "bf16", "int8", "int4", "int4a8")


def main() -> int:
    options = parsed()
    is_right = True
    read = ReadBandwidth(options.threads)
    print(f"CPU: {cpu_features().model}; {options.threads} threads; {read.measure():.1f} GB/s\n")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.folder or made)
        for name in options.models.split(","):
            for form in options.forms.split(","):
                path = folder / f"{name}-{_stored(form)}" / "model.onnx"
                if not path.exists():
                    write_model(MODELS[name], _stored(form), path.parent)
                is_right = report(name, form, path, options, read) and is_right
    return int(not is_right)


def _stored(form: str) -> str:
    """The form of the weights in the file: engines round to bf16 themselves."""
    return "f32" if form == "bf16" else form


def report(name: str, form: str, path: Path, options: argparse.Namespace, read: ReadBandwidth) -> bool:
    """Measure and print; returns False if engines that compute in f32 chose different tokens."""
    contexts = [int(each) for each in options.contexts.split(",")]
    print(f"## {name}, {form}\n")
    workers = started(name, form, path, options)
    times = {engine: Times(load=worker.load_seconds) for engine, worker in workers.items()}
    print("; ".join(f"{engine} {worker.version}" for engine, worker in workers.items()), "\n", flush=True)
    bandwidths = []
    for round_index in range(options.rounds + 1):
        for context in contexts:
            prompt = np.random.default_rng(context).integers(0, MODELS[name].vocabulary, context).tolist()
            for engine, worker in list(workers.items()):
                time.sleep(_REST_SECONDS)
                bandwidths.append(read.measure())
                try:
                    measure(worker, times[engine], context, prompt, options.tokens, is_counted=round_index > 0)
                except RuntimeError as e:
                    print(f"{engine}: {e}\n")
                    worker.close()
                    del workers[engine], times[engine]
        for engine, worker in workers.items():
            if (lowered := worker.lowered()) is not None:
                times[engine].lowered.append(lowered)
    for engine, worker in workers.items():
        times[engine].resident = worker.resident()
        worker.close()
    if not times:
        return True
    model = MODELS[name]
    if options.rounds:
        print(speed_table(model, form, contexts, times, max(bandwidths)), "\n")
    weights = path.with_suffix(".onnx.data").stat().st_size - (2 * model.multiplied if form == "bf16" else 0)
    # This engine reserves twice the length of the prompt.
    cache = model.cache_bytes(2 * max(*contexts, options.tokens))
    print(memory_table(weights / 1e6, cache / 1e6, times), "\n", flush=True)
    if OURS in times:
        print(lowering_line(times[OURS].lowered), "\n", flush=True)
    differ = [each for each in differing(times) if ENGINES[each].computes_as_asked] if form == "f32" else []
    if differ:
        print(f"TOKENS DIFFER from {next(iter(times))}'s: {', '.join(differ)}\n", flush=True)
    return not differ


def started(name: str, form: str, path: Path, options: argparse.Namespace) -> dict[str, Worker]:
    """The engines that are installed and can run the form; says why the others are left out."""
    workers: dict[str, Worker] = {}
    for engine in options.engines.split(","):
        kind = ENGINES[engine]
        missing = [package for package in kind.packages if importlib.util.find_spec(package) is None]
        reason = f"not installed: {', '.join(missing)}" if missing else kind.reason_against(form)
        if not reason:
            try:
                kind.prepare(MODELS[name], path, form)
                workers[engine] = Worker(engine, path, form, options.threads)
            except RuntimeError as e:
                reason = str(e)
        if reason:
            print(f"Without {engine}: {reason}\n", flush=True)
    return workers


def measure(worker: Worker, times: Times, context: int, prompt: list[int], count: int, *, is_counted: bool) -> None:
    first, token = worker.start(prompt)
    seconds, tokens = worker.steps(count)
    times.tokens[context] = [token, *tokens]
    if is_counted:
        times.first.setdefault(context, []).append(first)
        times.each.setdefault(context, []).append(median(seconds))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--models", default="llama300m", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--forms", default="f32,bf16,int8,int4", help=f"of {', '.join(FORMS)}")
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--contexts", default="32,512", help="lengths of prompts, ascending (default: 32,512)")
    parser.add_argument("--tokens", type=int, default=12, help="tokens of a block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where models are written and kept; default: a temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
