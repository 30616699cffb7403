"""What ISOLATED adds to an inference: the same model on CPU and on ISOLATED:CPU, in alternating blocks of one run.

    python benchmarks/isolation.py [--rounds N] [--block N] [--threads N] [--json FILE]

- `small`: an MLP of three layers, one row of 64 numbers: the price of two messages between processes.
- `input`, `output`, `both`: tensors of 32 MB as the input, as the output, and as both: the price of copies. Beside it,
  the same number of bytes is copied by numpy in each round, to memory that is in use already (`copy`).

Prints the median of each, the median over the rounds of the difference, and for large tensors the difference in copies
of 32 MB: one for an input, which the caller's memory is not shared for, and none for an output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, Result, f32

ROWS = 8192
COLUMNS = 1024


def mlp() -> tuple[Model, np.ndarray]:
    """Three layers of 64 units, and one row."""
    generator = np.random.default_rng(0)
    x = Parameter(f32, [1, 64], "x")
    value: Any = x
    for _ in range(3):
        weight = generator.standard_normal((64, 64)).astype(np.float32) / 8
        value = ops.Relu(ops.MatMul(value, Constant(weight)))
    return Model([Result(value, "y")], [x], name="mlp"), np.ones((1, 64), np.float32)


def large(*, is_input: bool, is_output: bool) -> tuple[Model, np.ndarray]:
    """A sum over a large input, a large product of small ones, or an addition of large ones."""
    shape = [ROWS, COLUMNS if is_input else 1]
    x = Parameter(f32, shape, "x")
    if is_input and not is_output:
        result: Any = ops.ReduceSum(x, Constant(np.array([1], np.int64)))
    else:
        result = ops.Add(x, Constant(np.ones((1, COLUMNS), np.float32)))
    return Model([Result(result, "y")], [x], name="large"), np.ones(shape, np.float32)


CASES: Mapping[str, Callable[[], tuple[Model, np.ndarray]]] = {
    "small": mlp,
    "input": lambda: large(is_input=True, is_output=False),
    "output": lambda: large(is_input=False, is_output=True),
    "both": lambda: large(is_input=True, is_output=True),
}


def compare(name: str, rounds: int, block: int, config: Mapping[str, object]) -> dict[str, float]:
    """Microseconds of one case: medians of CPU, of ISOLATED, of their difference, and of a copy of 32 MB."""
    model, given = CASES[name]()
    core = Core()
    requests = [core.compile_model(model, device, config).create_infer_request() for device in ("CPU", "ISOLATED:CPU")]
    inputs = {"x": given}
    results = [request.infer(inputs)["y"].copy() for request in requests]
    if not np.array_equal(*results):
        raise SystemExit(f"{name}: the results differ")
    source, target = np.ones((ROWS, COLUMNS), np.float32), np.zeros((ROWS, COLUMNS), np.float32)
    steps: list[Callable[[], object]] = [lambda request=request: request.infer(inputs) for request in requests]
    if name != "small":
        steps.append(lambda: np.copyto(target, source))
    times = [[_median(step, block) for step in steps] for _ in range(rounds)]
    columns = [statistics.median(column) for column in zip(*times, strict=True)]
    found = {"cpu": columns[0], "isolated": columns[1]}
    found["difference"] = statistics.median(each[1] - each[0] for each in times)
    if name != "small":
        found["copy"] = columns[2]
        found["copies"] = statistics.median((each[1] - each[0]) / each[2] for each in times)
    return found


def _median(step: Callable[[], object], block: int) -> float:
    times = []
    for _ in range(block):
        start = time.perf_counter_ns()
        step()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="alternations of both devices (default: 30)")
    parser.add_argument(
        "--block", type=int, default=100, help="small inferences in a turn (default: 100); large: a 20th"
    )
    parser.add_argument("--threads", type=int, default=0, help="INFERENCE_NUM_THREADS of both")
    parser.add_argument("--cases", default=",".join(CASES), help="of small, input, output, both")
    parser.add_argument("--json", type=Path, help="write the figures, in microseconds, to this file")
    options = parser.parse_args()
    config = {"INFERENCE_NUM_THREADS": options.threads} if options.threads else {}
    figures = {}
    for name in options.cases.split(","):
        block = options.block if name == "small" else max(1, options.block // 20)
        figures[name] = found = compare(name, options.rounds, block, config)
        line = f"{name:7} CPU {found['cpu']:9.1f} us  ISOLATED:CPU {found['isolated']:9.1f} us"
        line += f"  difference {found['difference']:8.1f} us"
        if "copies" in found:
            line += f" = {found['copies']:.2f} copies of {found['copy']:.0f} us"
        print(line, flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
