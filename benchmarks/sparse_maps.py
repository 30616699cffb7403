"""Times 3x3 convolutions of sparse maps, and of maps of any range, by Winograd's algorithm, against direct sums.

    python benchmarks/sparse_maps.py                 # one thread
    python benchmarks/sparse_maps.py OPENCL --only 64,128

The algorithm cannot compute all outputs of such maps exactly enough (see docs/cpu.md), and maps with zeros are usual
after a Relu, or beside a mask. Each convolution of ResNet-50 is compiled twice, once for ACCURACY, which rules out the
algorithm. Inferences of both alternate; the shortest of each is reported, and the ratio.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from comparison.report import markdown
from onnx import helper, numpy_helper

from engine import Core
from engine.testing.values import values

SHAPES = {64: 56, 128: 28, 256: 14, 512: 7}
"""Height and width by channels."""

Array = np.ndarray[Any, np.dtype[np.float32]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("device", nargs="?", default="CPU", help="default: CPU")
    parser.add_argument("--only", default=",".join(map(str, SHAPES)), help="channels, separated by commas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="of CPU")
    options = parser.parse_args()
    config = {"INFERENCE_NUM_THREADS": options.threads} if options.device == "CPU" else {}
    core, rows = Core(), []
    for channels in map(int, options.only.split(",")):
        size = SHAPES[channels]
        model = _model(channels, size)
        accurate = config | {"EXECUTION_MODE_HINT": "ACCURACY"}
        requests = [core.compile_model(model, options.device, c).create_infer_request() for c in (config, accurate)]
        for name, x in _maps(channels, size):
            fast, direct = _shortest([lambda r=r, x=x: r.infer({"x": x}) for r in requests], options.rounds)
            shape = f"{channels}x{size}x{size}"
            rows.append([shape, name, f"{fast * 1e6:.0f}", f"{direct * 1e6:.0f}", f"{fast / direct:.2f}"])
    print(markdown(["map", "values", "us", "us, ACCURACY", "ratio"], rows))


def _model(channels: int, size: int) -> Any:
    shape = [1, channels, size, size]
    w = values(channels, channels, 3, 3, seed="w", is_uniform=True)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    x, y = (helper.make_tensor_value_info(name, 1, shape) for name in "xy")
    graph = helper.make_graph([node], "conv", [x], [y], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _maps(channels: int, size: int) -> Iterator[tuple[str, Array]]:
    random = np.random.default_rng(0)
    dense = random.standard_normal((1, channels, size, size)).astype(np.float32)
    yield "usual", dense
    yield "after Relu", np.maximum(dense, 0)
    for share in (0.5, 0.1, 0.03):
        yield f"{share:.0%} of the pixels", dense * (random.random((size, size)) < share)
    yield "10 % of the values", dense * (random.random(dense.shape) < 0.1)
    yield "one half", dense * (np.arange(size) < size // 2)
    yield "zeros", np.zeros_like(dense)
    yield "a range of 1e6", (dense * np.exp2(20 * random.random((size, size)))).astype(np.float32)
    is_spike = np.arange(size) % 4 == 1
    yield "1e6 in each tile", (dense * np.where(is_spike[:, None] & is_spike, 1e6, 1)).astype(np.float32)
    is_spike = np.arange(size) % 8 == 1
    yield "1e6 in a quarter of the tiles", (dense * np.where(is_spike[:, None] & is_spike, 1e6, 1)).astype(np.float32)
    yield "NaN in a channel", np.where(np.arange(channels)[:, None, None] == 0, np.float32(np.nan), dense)
    corner = dense.copy()
    corner[..., size // 2 + 2 :, :] = corner[..., size // 2 + 2 :] = np.nan
    yield "NaN but in a quarter", corner


def _shortest(runs: list[Callable[[], Any]], rounds: int) -> list[float]:
    """The least seconds of each, in turns."""
    best = [np.inf] * len(runs)
    for _ in range(rounds + 1):
        for i, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
