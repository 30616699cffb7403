"""CPU time of tokens with proposals by `PromptLookup` and `Draft`, beside the same tokens without.

    python benchmarks/speculation.py                        # 84 M parameters, f32, int8 and int4; ten minutes
    python benchmarks/speculation.py --forms f32 --rounds 1 --tokens 20    # a quick look

The model is Llama-like, with seeded weights, and uses one thread, since its CPU time hardly depends on what else runs.
Rounds alternate. The first one is not counted, and of a batch the first four, in which plans are made; ratios are
medians, with the least and the greatest one. Times are those after the first token; those of a draft include its
prompt, and those of a Scheduler all prompts.

- "repeats": a bias leaves six tokens, and the likeliest of them soon repeat;
- "does not repeat": tokens are drawn, and no two follow each other twice;
- "misleads": six tokens are equally likely, so that the last two have nearly always occurred, followed by another;
- "accepted draft": a small model; tokens are drawn from six that are nearly equally likely for both;
- "refused draft": the small model; the likeliest tokens, which are others than the network's;
- "Scheduler, n: ...": n sequences at a time, in one batch; of a text that repeats, each begins with another token;
  "some repeat": one of four repeats, the others are as those of "does not repeat";
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
from engine.generation import Draft, Generator, PromptLookup, Sampling, Scheduler
from engine.native import cpu_features
from engine.passes import LastPosition, MakeStateful, MaskedCaches, compress_weights

VOCABULARY = 16000
NETWORK, SMALL = Llama(12, 768, 12, 4, 2048, VOCABULARY), Llama(2, 256, 4, 2, 640, VOCABULARY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--forms", default="f32,int8,int4", help="of f32, int8, int4, int4a8")
    parser.add_argument("--context", type=int, default=36, help="the tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="only those with this in their name")
    parser.add_argument("--folder", help="where models are written and kept; default: a temporary folder")
    options = parser.parse_args()
    print(f"CPU: {cpu_features().model}; one thread, {options.tokens} tokens after {options.context}\n")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.folder or made)
        small = compiled(folder, "small", SMALL, "int4")
        for form in options.forms.split(","):
            network = compiled(folder, "network", NETWORK, form)
            batched = compiled(folder, "network", NETWORK, form, is_masked=True)
            drafts = {"accepted draft": Draft(small), "refused draft": Draft(small)}
            if form == "f32":
                drafts["dear draft"] = Draft(compiled(folder, "network", NETWORK, form, bits="int4"))
            rows += [[form, *row] for row in measured(network, batched, drafts, options)]
    print(markdown(["weights", "text", "ms without", "ms with", "ratio", "tokens per run", "accepted"], rows))


def compiled(
    folder: Path, name: str, model: Llama, form: str, bits: str | None = None, *, is_masked: bool = False
) -> Any:
    path = folder / f"{name}-{form}" / "model.onnx"
    if not path.exists():
        write_model(model, form, path.parent)
    core = Core()
    graph = core.read_model(path)
    MakeStateful().run_on_model(graph)
    if is_masked:
        MaskedCaches().run_on_model(graph)
    LastPosition(count=PromptLookup().tokens + 1).run_on_model(graph)
    graph = graph if bits is None else compress_weights(graph, bits).model
    return core.compile_model(graph, "CPU", {"INFERENCE_NUM_THREADS": 1})


def measured(network: Any, batched: Any, drafts: dict[str, Draft], options: argparse.Namespace) -> list[list[str]]:
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
    likeliest, drawn = Sampling(logit_bias=bias), Sampling(temperature=1.0, seed=1)
    others = [random.integers(0, VOCABULARY, options.context).tolist() for _ in range(3)]
    rotated = [[*repeated[i:], *repeated[:i]] for i in range(4)]
    batches: list[tuple[str, list[list[int]], list[Sampling], Draft | PromptLookup]] = [
        ("Scheduler, 1: repeats", [repeated], [likeliest], PromptLookup()),
        ("Scheduler, 1: does not repeat", [prompt], [drawn], PromptLookup()),
        ("Scheduler, 1: misleads", [repeated], [evenly], PromptLookup()),
        ("Scheduler, 1: accepted draft", [prompt], [evenly], drafts["accepted draft"]),
        ("Scheduler, 4: repeats", rotated, [likeliest] * 4, PromptLookup()),
        ("Scheduler, 4: misleads", rotated, [evenly] * 4, PromptLookup()),
        ("Scheduler, 4: some repeat", [repeated, *others], [likeliest, *[drawn] * 3], PromptLookup()),
    ]
    made = [(name, [tokens], [sampling], draft) for name, tokens, sampling, draft in cases]
    rows = []
    for name, prompts, samplings, draft in [*made, *batches]:
        if options.cases not in name:
            continue
        times: list[tuple[float, float]] = []
        compute, used = (scheduled, batched) if name.startswith("Scheduler") else (run, network)
        uncounted = 4 if len(prompts) > 1 else 1
        for turn in range(options.rounds + uncounted):
            without, expected, _ = compute(used, prompts, samplings, None, options.tokens)
            proposing, found, statistics = compute(used, prompts, samplings, draft, options.tokens)
            # Which sequences are computed together depends on times, and so do draws from 16,000 tokens, by rounding.
            if not any(each.temperature for each in samplings) or (draft == PromptLookup() and len(prompts) == 1):
                assert found == expected, f"{name}: the tokens differ from those without proposals"
            if turn >= uncounted:
                times.append((without, proposing))
        count = options.tokens * len(prompts)
        each = [f"{median(column) * 1e3 / count:.1f}" for column in zip(*times, strict=True)]
        ratios = [a / b for a, b in times]
        rows.append(
            [
                name, *each, f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})",
                statistics[0], f"{statistics[2]} of {statistics[1]}",
            ]
        )  # fmt: skip
        print(" ".join(rows[-1]), flush=True)
    return rows


Found = tuple[float, list[list[int]], tuple[str, int, int]]
"""CPU seconds, tokens, and statistics: the tokens of a run, and the numbers of proposed and accepted ones."""


def run(network: Any, prompts: list[list[int]], samplings: list[Sampling], draft: Any, count: int) -> Found:
    """`count` tokens of a `Generator` after the first one."""
    generator = Generator(network, samplings[0], draft=draft)
    generator.append(prompts[0])
    generator.step()
    begin = time.process_time()
    tokens = list(generator.stream(count))
    seconds, found = time.process_time() - begin, generator.speculation
    if found is None:
        return seconds, [tokens], ("1.0", 0, 0)
    return seconds, [tokens], (f"{found.tokens / found.runs:.1f}", found.proposed, found.accepted)


def scheduled(network: Any, prompts: list[list[int]], samplings: list[Sampling], draft: Any, count: int) -> Found:
    """`count` tokens of each sequence of a `Scheduler`."""
    with Scheduler(network, len(prompts), draft=draft) as scheduler:
        begin = time.process_time()
        pairs = zip(prompts, samplings, strict=True)
        streams = [scheduler.submit(prompt, count, sampling=sampling) for prompt, sampling in pairs]
        tokens = [stream.result() for stream in streams]
        seconds, found = time.process_time() - begin, scheduler.statistics
    return seconds, tokens, ("", found.proposed_tokens, found.accepted_tokens)


if __name__ == "__main__":
    main()
