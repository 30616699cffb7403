"""CPU time of tokens with proposals by `PromptLookup` and `Draft`, beside the same tokens without.

    python benchmarks/speculation.py                        # 84 M parameters, f32, int8 and int4; ten minutes
    python benchmarks/speculation.py --forms f32 --rounds 1 --tokens 20    # a quick look

The model is Llama-like, with seeded weights, and uses one thread, since its CPU time hardly depends on what else runs.
Rounds alternate, and the first one is not counted; ratios are medians, with the least and the greatest one. Times are
those after the first token; those of a draft include its prompt.

- "repeats": a bias leaves six tokens, and the likeliest of them soon repeat;
- "does not repeat": tokens are drawn, and no two follow each other twice;
- "misleads": six tokens are equally likely, so that the last two have nearly always occurred, followed by another;
- "accepted draft": a small model; tokens are drawn from six that are nearly equally likely for both;
- "refused draft": the small model; the likeliest tokens, which are others than the network's;
- "dear draft": the same model, whose weights `compress_weights` rounds to 4 bits; a third of its tokens are accepted.
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
from generating.llama import Llama
from generating.models import write_model

from engine import Core
from engine.generation import Draft, Generator, PromptLookup, Sampling
from engine.native import cpu_features
from engine.passes import LastPosition, MakeStateful, compress_weights

VOCABULARY = 16000
NETWORK, SMALL = Llama(12, 768, 12, 4, 2048, VOCABULARY), Llama(2, 256, 4, 2, 640, VOCABULARY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--forms", default="f32,int8,int4", help="of f32, int8, int4, int4a8")
    parser.add_argument("--context", type=int, default=36, help="the tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where models are written and kept; default: a temporary folder")
    options = parser.parse_args()
    print(f"CPU: {cpu_features().model}; one thread, {options.tokens} tokens after {options.context}\n")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.folder or made)
        small = compiled(folder, "small", SMALL, "int4")
        for form in options.forms.split(","):
            network = compiled(folder, "network", NETWORK, form)
            drafts = {"accepted draft": Draft(small), "refused draft": Draft(small)}
            if form == "f32":
                drafts["dear draft"] = Draft(compiled(folder, "network", NETWORK, form, bits="int4"))
            rows += [[form, *row] for row in measured(network, drafts, options)]
    print(markdown(["weights", "text", "ms without", "ms with", "ratio", "tokens per run", "accepted"], rows))


def compiled(folder: Path, name: str, model: Llama, form: str, bits: str | None = None) -> Any:
    path = folder / f"{name}-{form}" / "model.onnx"
    if not path.exists():
        write_model(model, form, path.parent)
    core = Core()
    graph = core.read_model(path)
    MakeStateful().run_on_model(graph)
    LastPosition(count=PromptLookup().tokens + 1).run_on_model(graph)
    graph = graph if bits is None else compress_weights(graph, bits).model
    return core.compile_model(graph, "CPU", {"INFERENCE_NUM_THREADS": 1})


def measured(network: Any, drafts: dict[str, Draft], options: argparse.Namespace) -> list[list[str]]:
    random = np.random.default_rng(0)
    prompt = random.integers(0, VOCABULARY, options.context).tolist()
    few = random.integers(0, VOCABULARY, 6).tolist()
    bias = dict.fromkeys(few, 1000.0)
    repeated = (few * options.context)[: options.context]
    evenly = Sampling(temperature=3.0, seed=1, logit_bias=bias)
    cases: list[tuple[str, list[int], Sampling, Draft | PromptLookup]] = [
        ("repeats", repeated, Sampling(logit_bias=bias), PromptLookup()),
        ("does not repeat", prompt, Sampling(temperature=1.0, seed=1), PromptLookup()),
        ("misleads", repeated, evenly, PromptLookup()),
        *((name, prompt, evenly if "accepted" in name else Sampling(), draft) for name, draft in drafts.items()),
    ]
    rows = []
    for name, tokens, sampling, draft in cases:
        times: list[tuple[float, float]] = []
        for turn in range(options.rounds + 1):
            without, expected, _ = run(network, tokens, sampling, None, options.tokens)
            proposing, found, statistics = run(network, tokens, sampling, draft, options.tokens)
            if draft == PromptLookup() or not sampling.temperature:
                assert found == expected, f"{name}: the tokens differ from those without proposals"
            if turn:
                times.append((without, proposing))
        each = [f"{median(column) * 1e3 / options.tokens:.1f}" for column in zip(*times, strict=True)]
        ratios = [a / b for a, b in times]
        rows.append(
            [
                name, *each, f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})",
                f"{statistics.tokens / statistics.runs:.1f}", f"{statistics.accepted} of {statistics.proposed}",
            ]
        )  # fmt: skip
        print(" ".join(rows[-1]), flush=True)
    return rows


def run(network: Any, prompt: list[int], sampling: Sampling, draft: Any, count: int) -> tuple[float, list[int], Any]:
    """The CPU seconds of `count` tokens after the first one, the tokens, and the statistics."""
    generator = Generator(network, sampling, draft=draft)
    generator.append(prompt)
    generator.step()
    begin = time.process_time()
    tokens = list(generator.stream(count))
    return time.process_time() - begin, tokens, generator.speculation


if __name__ == "__main__":
    main()
