"""Tokens of language models, beside onnxruntime-genai and openvino: time to the first one, and for each after it.

    python benchmarks/generation.py                                     # 300 M parameters; f32, bf16, int8, int4
    python benchmarks/generation.py --models llama1b --forms int4 --rounds 3 --contexts 32,512,2048
    python benchmarks/generation.py --engines engine --models tiny      # a quick look

Models have seeded weights, in the form of onnxruntime-genai's model builder; they are written to a folder once. Every
engine runs in a process of its own, in alternating blocks with rests between them, since one's spinning threads would
slow the others. A round begins with a prompt of each context's length, which gives the time to the first token, and
goes on with a block of tokens. Times are the medians of the rounds; the first round, in which engines prepare
themselves, is not counted. "limit" is the time to read the weights once at the best bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from comparison.read import ReadBandwidth
from comparison.report import markdown
from generating.engines import ENGINES, Worker
from generating.models import MODELS, Llama, write_model

from engine.native import cpu_features

_REST_SECONDS = 0.5
FORMS = ("f32", "bf16", "int8", "int4", "int4a8")


@dataclass(slots=True)
class Times:
    """The measurements of one engine."""

    first: dict[int, list[float]] = field(default_factory=dict)
    """Seconds until the first token, by the length of the prompt."""
    each: dict[int, list[float]] = field(default_factory=dict)
    """Medians of the seconds of the tokens of each block, by the length of the prompt."""
    tokens: dict[int, list[int]] = field(default_factory=dict)
    memory: tuple[float, float] = (0.0, 0.0)
    load: float = 0.0


def main() -> None:
    options = parsed()
    read = ReadBandwidth(options.threads)
    print(f"CPU: {cpu_features().model}; {options.threads} threads; {read.measure():.1f} GB/s\n")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.folder or made)
        for name in options.models.split(","):
            for form in options.forms.split(","):
                path = folder / f"{name}-{_stored(form)}" / "model.onnx"
                if not path.exists():
                    write_model(MODELS[name], _stored(form), path.parent)
                report(name, form, path, options, read)


def _stored(form: str) -> str:
    """The form of the weights in the file: engines round to bf16 themselves."""
    return "f32" if form == "bf16" else form


def report(name: str, form: str, path: Path, options: argparse.Namespace, read: ReadBandwidth) -> None:
    contexts = [int(each) for each in options.contexts.split(",")]
    workers: dict[str, Worker] = {}
    times: dict[str, Times] = {}
    print(f"## {name}, {form}\n")
    for engine in options.engines.split(","):
        try:
            workers[engine] = Worker(engine, path, form, options.threads)
        except RuntimeError as e:
            print(f"{engine}: {e}\n")
            continue
        times[engine] = Times(load=workers[engine].load_seconds)
        print(f"{engine} {workers[engine].version}", end="; ", flush=True)
    print("\n")
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
        times[engine].memory = worker.megabytes()
        worker.close()
    show(MODELS[name], form, contexts, times, max(bandwidths))


def measure(worker: Worker, times: Times, context: int, prompt: list[int], count: int, *, is_counted: bool) -> None:
    first, token = worker.start(prompt)
    seconds, tokens = worker.steps(count)
    times.tokens[context] = [token, *tokens]
    if is_counted:
        times.first.setdefault(context, []).append(first)
        times.each.setdefault(context, []).append(median(seconds))


def show(model: Llama, form: str, contexts: list[int], times: dict[str, Times], bandwidth: float) -> None:
    limit = model.weight_bytes(form) / bandwidth / 1e6
    header = ["engine", *(f"ms a token at {c}" for c in contexts), *(f"first token after {c}, ms" for c in contexts)]
    rows = []
    for engine, found in times.items():
        each = [f"{1e3 * median(found.each[c]):.2f}" for c in contexts]
        first = [f"{1e3 * median(found.first[c]):.0f}" for c in contexts]
        memory = [f"{found.load:.1f}", f"{found.memory[0]:.0f}", f"{found.memory[1]:.0f}"]
        rows.append([engine, *each, *first, *memory, _agreement(times, engine, contexts)])
    rows.append([f"limit at {bandwidth:.1f} GB/s", *[f"{limit:.2f}"] * len(contexts), *[""] * (len(contexts) + 4)])
    peers = [found for engine, found in times.items() if engine != "engine"]
    if "engine" in times and peers:
        ours = times["engine"]
        ratios = [
            f"{min(median(getattr(p, kind)[c]) for p in peers) / median(getattr(ours, kind)[c]):.2f}x"
            for kind in ("each", "first")
            for c in contexts
        ]
        rows.append(["the faster peer / engine", *ratios, *[""] * 4])
    print(markdown([*header, "load, s", "MB", "peak MB", "same tokens"], rows), "\n", flush=True)


def _agreement(times: dict[str, Times], engine: str, contexts: list[int]) -> str:
    """How many of the first tokens are those of the first engine."""
    first = next(iter(times.values()))
    counts = []
    for context in contexts:
        pairs = list(zip(times[engine].tokens[context], first.tokens[context], strict=True))
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        counts.append(f"{same}/{len(pairs)}")
    return " ".join(counts)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--models", default="llama300m", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--forms", default="f32,bf16,int8,int4", help=f"of {', '.join(FORMS)}")
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--contexts", default="32,512", help="lengths of prompts (default: 32,512)")
    parser.add_argument("--tokens", type=int, default=12, help="tokens of a block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where models are written and kept; default: a temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
