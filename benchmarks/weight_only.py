"""Products of one row with weights of 4 and 8 bits, beside the machine's read bandwidth and onnxruntime.

    python benchmarks/weight_only.py                    # 2 threads, three sizes
    python benchmarks/weight_only.py --threads 1 --rows 4 --sizes 4096x4096 --rounds 20

Each network is a chain of MatMulNBits whose weights, together, no cache holds. Each round runs this engine and
onnxruntime at the accuracy levels 0 (f32) and 4 (activations of 8 bits), and reads memory before each. Times and rates
are the best and, in brackets, the median of the rounds. The share is the median of the rates in relation to the read
right before, so that other work on a shared machine slows both; repeat measurements that disagree.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import onnx
from comparison.read import ReadBandwidth
from comparison.report import markdown
from onnx import TensorProto, helper, numpy_helper

from engine import Core

_MIN_BYTES = 192 << 20
_FORMS = ((4, 32), (4, 128), (8, 128))
_LEVELS = (0, 4)


@dataclass(frozen=True, slots=True)
class Chain:
    """Products of [rows, k] with [k, n] and [n, k] in turns."""

    k: int
    n: int
    bits: int
    block: int
    rows: int

    @property
    def bytes_each(self) -> int:
        """The codes, and scales of f32, of one product."""
        return self.k * self.n * self.bits // 8 + 4 * self.k * self.n // self.block

    @property
    def count(self) -> int:
        """The number of products."""
        return max(2, _MIN_BYTES // self.bytes_each // 2 * 2)

    def model(self, level: int) -> onnx.ModelProto:
        """The network at an accuracy level; its weights keep the size of values."""
        rng, nodes, tensors = np.random.default_rng(0), [], []
        for index in range(self.count):
            k, n = (self.k, self.n) if index % 2 == 0 else (self.n, self.k)
            blocks = k // self.block
            # Zero on average, so that values keep their size through the chain.
            codes = rng.integers(1, 1 << self.bits, (n, blocks, self.block), np.uint8)
            if self.bits == 4:
                codes = codes[..., ::2] | codes[..., 1::2] << 4
            spread = (1 << self.bits) / 12**0.5
            scales = rng.uniform(0.9, 1.1, n * blocks).astype(np.float32) / np.float32(spread * k**0.5)
            tensors += [numpy_helper.from_array(codes, f"w{index}"), numpy_helper.from_array(scales, f"s{index}")]
            nodes.append(
                helper.make_node(
                    "MatMulNBits", [f"x{index}", f"w{index}", f"s{index}"], [f"x{index + 1}"], f"product{index}",
                    domain="com.microsoft", K=k, N=n, bits=self.bits, block_size=self.block, accuracy_level=level,
                )
            )  # fmt: skip
        last = f"x{self.count}"
        graph = helper.make_graph(
            nodes, "chain",
            [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [self.rows, self.k])],
            [helper.make_tensor_value_info(last, TensorProto.FLOAT, [self.rows, self.k])], tensors,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def main() -> None:
    options = parsed()
    read = ReadBandwidth(options.threads)
    rows = []
    for size in options.sizes.split(","):
        k, n = map(int, size.split("x"))
        for bits, block in _FORMS:
            rows += measured(Chain(k, n, bits, block, options.rows), read, options)
    header = ["weights", "engine", "accuracy level", "µs", "GB/s of weights", "read GB/s", "share of read", "error"]
    print(markdown(header, rows))


def measured(chain: Chain, read: ReadBandwidth, options: Any) -> list[list[str]]:
    """Rows of the table: each engine at each accuracy level."""
    x = np.random.default_rng(1).standard_normal((chain.rows, chain.k)).astype(np.float32)
    runs: dict[tuple[str, int], Callable[[], Any]] = {}
    for level in _LEVELS:
        model = chain.model(level)
        for name, start in (("engine", engine_run), ("onnxruntime", onnxruntime_run)):
            if name in options.engines.split(","):
                runs[name, level] = start(model, x, options.threads)
    results = {key: run() for key, run in runs.items()}
    exact = results.get(("onnxruntime", 0), next(iter(results.values())))
    times: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    reads: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for _ in range(options.rounds):
        for key, run in runs.items():
            time.sleep(0.02)  # other engines' threads stop spinning
            reads[key].append(read.measure())
            begin = time.perf_counter()
            run()
            times[key].append((time.perf_counter() - begin) / chain.count)
    bandwidths = [bandwidth for found in reads.values() for bandwidth in found]
    rows = []
    for (name, level), found in times.items():
        rates = [chain.bytes_each / seconds / 1e9 for seconds in found]
        share = median(rate / bandwidth for rate, bandwidth in zip(rates, reads[name, level], strict=True))
        error = np.abs(results[name, level] - exact).max() / np.abs(exact).max()
        what = f"{chain.k}x{chain.n} int{chain.bits}, blocks of {chain.block}"
        rows.append([
            what, name, str(level), f"{min(found) * 1e6:.0f} ({median(found) * 1e6:.0f})",
            f"{max(rates):.1f} ({median(rates):.1f})", f"{max(bandwidths):.1f} ({median(bandwidths):.1f})",
            f"{share:.0%}", f"{error:.0e}",
        ])  # fmt: skip
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def engine_run(model: onnx.ModelProto, x: Any, threads: int) -> Callable[[], Any]:
    """An inference of this engine."""
    request = Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads}).create_infer_request()
    return lambda: next(iter(request.infer({"x0": x}).values())).copy()


def onnxruntime_run(model: onnx.ModelProto, x: Any, threads: int) -> Callable[[], Any]:
    """An inference of onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x0": x})[0]


def parsed() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1, help="rows of the activations")
    parser.add_argument("--sizes", default="4096x4096,2048x5632,2048x2048")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--engines", default="engine,onnxruntime")
    return parser.parse_args()


if __name__ == "__main__":
    main()
