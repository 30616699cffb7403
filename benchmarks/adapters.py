"""Tokens with low-rank adapters: CPU time relative to the same model without inputs for adapters.

    python benchmarks/adapters.py                          # f32 and int4
    python benchmarks/adapters.py --forms f32 --layers 24 --rank 64

The model is Llama-like with seeded weights. All its linear layers but the last are adapted, and the adapters have
random elements. A model without inputs for adapters also shows what merged weights cost. All generators take turns in
one process, and the medians of their CPU times are compared, so that other processes disturb little.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from generating.llama import Llama
from generating.models import write_model

from engine import Core
from engine.generation import Adapter, Generator
from engine.native import cpu_features
from engine.passes import LastPosition, MakeAdaptable, MakeStateful

_PROMPT = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--forms", default="f32,int4")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=60)
    options = parser.parse_args()
    model = Llama(options.layers, 1024, 16, 4, 2816, 4000)
    print(f"CPU: {cpu_features().model}; {model.multiplied / 1e6:.0f} M parameters; rank {options.rank}\n")
    for form in options.forms.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = write_model(model, form, Path(folder), has_positions=True)
            plain, adaptable = compiled(path, is_adaptable=False), compiled(path, is_adaptable=True, rank=options.rank)
            one, other = (adapter_of(adaptable, options.rank, seed) for seed in (1, 2))
            for count, cases in (
                (1, {"no adapter": None, "one adapter": one}),
                (4, {"no adapter": None, "one adapter": one, "two adapters": [one, other, one, None]}),
            ):
                made = {name: Generator(adaptable, adapter=given) for name, given in cases.items()}
                report(form, count, {"without inputs": Generator(plain), **made}, options.tokens)


def compiled(path: Path, *, is_adaptable: bool, rank: int = 1) -> Any:
    core = Core()
    model = core.read_model(path)
    MakeStateful(bound=1024).run_on_model(model)
    LastPosition().run_on_model(model)
    if is_adaptable:
        MakeAdaptable(rank=2 * rank).run_on_model(model)
    return core.compile_model(model, "CPU")


def adapter_of(network: Any, rank: int, seed: int) -> Adapter:
    random, shapes = np.random.default_rng(seed), {port.name: port.shape for port in network.inputs}
    modules = {}
    for name in shapes:
        path = name.removesuffix(".lora_A")
        if path != name:
            rows, columns = shapes[name][0].get_length(), shapes[f"{path}.lora_B"][1].get_length()
            a = random.standard_normal((rows, rank), np.float32) / np.float32(rows**0.5)
            modules[path] = a, random.standard_normal((rank, columns), np.float32) / 32
    return Adapter(f"adapter {seed}", modules)


def report(form: str, count: int, generators: dict[str, Generator], tokens: int) -> None:
    random, seconds = np.random.default_rng(0), {name: list[float]() for name in generators}
    for generator in generators.values():
        generator.append(random.integers(0, 4000, (count, _PROMPT)))
        for _ in range(4):
            generator.step()
    for _ in range(tokens):
        for name, generator in generators.items():
            begin = time.process_time()
            generator.step()
            seconds[name].append(time.process_time() - begin)
    medians = {name: median(each) for name, each in seconds.items()}
    shown = ", ".join(f"{name} {each / medians['without inputs']:.2f}" for name, each in medians.items())
    print(f"{form}, {count} at a time ({medians['without inputs'] * 1e3:.1f} ms): {shown}", flush=True)


if __name__ == "__main__":
    main()
