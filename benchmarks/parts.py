"""Tokens of a model in parts, each in a process of a local Ray, beside the whole model in this process.

    python benchmarks/parts.py                                  # Llama-like, 300 M parameters, two parts
    python benchmarks/parts.py --models tiny --rounds 1         # a quick look
    python benchmarks/parts.py --path model.onnx --parts 2 --batch 8

Each process has one thread, as if it were on a machine of its own. Rounds run every arm once; times are the medians of
the rounds.

- `whole`: one batch, by the model in this process
- `parts, 1`: one micro-batch, so that one part works at a time
- `parts, N`: N micro-batches, each as large as that one, which are at different parts at the same time
- `CPU`: the CPU time of all processes for one token, which other programs change less

The lines below have what the model on paper needs (docs/scaling.md): the memory of each process, the bytes of a token
that go from one part to the next, and the time of a step that computes nearly nothing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import ray
from comparison.report import markdown
from engine_ray import PartFolder, PartsNetwork, export_parts, open_parts
from generating.models import MODELS, write_model

from engine import Core, ops
from engine.generation import Generator
from engine.ir import Constant, Model, Parameter, Result, f32
from engine.native import cpu_features
from engine.passes import LastPosition, MakeStateful

Run = Callable[[Sequence[Sequence[int]], int], list[list[int]]]

_TICK: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to run the model, and the processes that compute it."""

    name: str
    run: Run
    processes: tuple[int, ...]
    batches: int


def main() -> int:
    options = parsed()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=options.parts, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.folder or made)
        model = read(options, folder)
        start = time.perf_counter()
        exported = export_parts(model, folder / "parts", options.parts)
        seconds = time.perf_counter() - start
        print(
            f"{cpu_features().model}; load {os.getloadavg()[0]:.1f}; {exported.weight_bytes / 1e6:.0f} MB of weights "
            f"in {options.parts} parts, the largest with {exported.largest_share:.1%}; exported in {seconds:.1f} s\n"
        )
        with open_parts(folder / "parts") as network:
            is_right = measure(model, network, options)
            report(exported, network)
        middle, least = empty_step(options.parts, folder)
        print(f"a step that computes nearly nothing: {middle * 1e3:.1f} ms, the fastest {least * 1e3:.1f} ms")
    return int(not is_right)


def read(options: argparse.Namespace, folder: Path) -> Model:
    path = options.path or write_model(MODELS[options.models], "f32", folder / options.models)
    model = Core().read_model(path)
    MakeStateful().run_on_model(model)
    LastPosition().run_on_model(model)
    return model


def measure(model: Model, network: PartsNetwork, options: argparse.Namespace) -> bool:
    """Print the table; returns whether all arms choose the same tokens."""
    own, others = os.getpid(), tuple(each.process for each in network.processes())
    arms = [Arm("whole", whole(model), (own,), 1)]
    arms += [
        Arm(f"parts, {count}", in_parts(network, count), (own, *others), count)
        for count in (1, options.parts, options.parts + 1)
    ]
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, 1000, (options.batch * (options.parts + 1), options.prompt)).tolist()
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    cpus: dict[str, list[float]] = {arm.name: [] for arm in arms}
    found = {}
    for number in range(options.rounds + 1):
        for arm in arms:
            # Of a run of many tokens and one of few, the difference has no prompt.
            given = prompts[: options.batch * arm.batches]
            (short, short_cpu, _), (long, long_cpu, tokens) = (
                timed(arm, given, count) for count in (2, options.tokens + 2)
            )
            found[arm.name] = tokens
            if number:  # the first round prepares
                times[arm.name].append((long - short) / options.tokens / len(given))
                cpus[arm.name].append((long_cpu - short_cpu) / options.tokens / len(given))
    rows = [[arm.name, f"{1 / median(times[arm.name]):.1f}", f"{median(cpus[arm.name]) * 1e3:.1f} ms"] for arm in arms]
    print(markdown(["", "tokens/s", "CPU of a token"], rows))
    is_right = all(tokens[: options.batch] == found[arms[0].name] for tokens in found.values())
    print("\nall arms choose the same tokens\n" if is_right else "\nARMS CHOOSE DIFFERENT TOKENS\n")
    return is_right


def whole(model: Model) -> Run:
    network = Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1})
    return lambda prompts, count: Generator(network).generate(prompts, count)


def in_parts(network: PartsNetwork, count: int) -> Run:
    return lambda prompts, tokens: network.generate(prompts, tokens, micro_batches=count)


def timed(arm: Arm, prompts: Sequence[Sequence[int]], count: int) -> tuple[float, float, list[list[int]]]:
    cpu, start = cpu_seconds(arm.processes), time.perf_counter()
    found = arm.run(prompts, count)
    return time.perf_counter() - start, cpu_seconds(arm.processes) - cpu, found


def cpu_seconds(processes: Sequence[int]) -> float:
    fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in processes]
    return sum(int(each[11]) + int(each[12]) for each in fields) / _TICK


def report(exported: PartFolder, network: PartsNetwork) -> None:
    whole_bytes = exported.weight_bytes
    for each in network.processes():
        held = each.memory.get("weights", 0) + each.memory.get("constants", 0)
        print(
            f"part {each.part}: {each.weight_bytes / 1e6:.0f} MB of weights ({each.weight_bytes / whole_bytes:.1%}); "
            f"{held / 1e6:.0f} MB held by the device, {each.resident_bytes / 1e6:.0f} MB resident, of which "
            f"{each.own_bytes / 1e6:.0f} MB are of no file"
        )


def empty_step(parts: int, folder: Path) -> tuple[float, float]:
    """The median and the least seconds of a step through parts that multiply a vector by a small matrix."""
    value: Any = Parameter(f32, [1, 16], "x")
    inputs = [value]
    for _ in range(parts):
        value = ops.Relu(ops.MatMul(value, Constant(np.eye(16, dtype=np.float32))))
    export_parts(Model([Result(value, "y")], inputs), folder / "small", parts)
    seconds = []
    with open_parts(folder / "small") as network:
        request = network.create_infer_request()
        for _ in range(200):
            start = time.perf_counter()
            request.infer({"x": np.ones((1, 16), np.float32)})
            seconds.append(time.perf_counter() - start)
    return median(seconds), min(seconds)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama300m", choices=sorted(MODELS))
    parser.add_argument("--path", help="an ONNX file, in place of one of the models")
    parser.add_argument("--folder", help="where the files of models and parts are kept")
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a micro-batch")
    parser.add_argument("--prompt", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
