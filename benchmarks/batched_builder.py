"""Whether a Scheduler computes the tokens that a Generator does, for models that onnxruntime-genai's builder wrote.

    python benchmarks/genai_builder.py write models      # see there
    python benchmarks/batched_builder.py models

For each model: seven prompts of 1 to 70 tokens, four sequences at a time, prompts in chunks of 9, 20 tokens each; its
caches are masked (`MaskedCaches`). The Generator computes one sequence at a time, and has the model without this pass.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine import Core
from engine.errors import EngineError
from engine.generation import GenaiFolder, Generator, Scheduler, read_genai_folder
from engine.passes import MakeStateful, MaskedCaches

PROMPTS: Final = (1, 7, 40, 20, 70, 16, 17)
TOKENS: Final = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="CPU")
    options = parser.parse_args()
    for path in sorted(options.folder.rglob("genai_config.json")):
        name = path.parent.relative_to(options.folder)
        try:
            same = compared(read_genai_folder(path.parent), options.device)
        except EngineError as e:
            print(f"{name}: {type(e).__name__}: {e}"[:300], flush=True)
        else:
            print(f"{name}: {same} of {len(PROMPTS) * TOKENS} tokens", flush=True)


def compared(folder: GenaiFolder, device: str) -> int:
    """How many tokens are the same."""
    prompts = [np.random.default_rng(length).integers(3, 300, length).tolist() for length in PROMPTS]
    network = compiled(folder, device, is_masked=True)
    with Scheduler(network, 4, names=folder.names, prompt_chunk=9) as scheduler:
        streams = [scheduler.submit(prompt, TOKENS) for prompt in prompts]
        found = [stream.result() for stream in streams]
    generator, same = Generator(compiled(folder, device, is_masked=False), names=folder.names), 0
    for prompt, tokens in zip(prompts, found, strict=True):
        generator.reset()
        same += sum(a == b for a, b in zip(generator.generate(prompt, TOKENS)[0], tokens, strict=True))
    return same


def compiled(folder: GenaiFolder, device: str, *, is_masked: bool) -> Any:
    core = Core()
    model = core.read_model(folder.model)
    MakeStateful(folder.pairs({parameter.friendly_name for parameter in model.parameters})).run_on_model(model)
    if is_masked:
        MaskedCaches(folder.names.get("attention_mask", "attention_mask")).run_on_model(model)
    return core.compile_model(model, device)


if __name__ == "__main__":
    main()
