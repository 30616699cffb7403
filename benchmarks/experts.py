"""A mixture of experts beside a dense layer of as many active parameters, and beside onnxruntime's.

    python benchmarks/experts.py                                # 8 of 64 experts, 1 and 128 tokens, two threads
    python benchmarks/experts.py --experts 32 --chosen 4 --hidden 2880 --inner 2880 --forms int4

Both are gated layers (SwiGLU). The mixture is a MoE or QMoE; the dense layer has one matrix for the gates and linear
parts of all chosen experts, and one for the results: MatMul, or MatMulNBits in the same blocks. Each run chooses other
experts, and copies of the dense layer run in turns, so that no cache holds the weights of a run, as in a language
model. Each round runs every arm once; ratios are medians of the rounds' ratios, so that other work on a shared machine
slows both arms. With --cpu, times are CPU times of one thread: these hardly depend on other work, but do not show the
bandwidth that threads share.
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
from comparison.report import markdown
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine import Core

Array = NDArray[Any]
_MIN_BYTES = 96 << 20
_DOMAIN = "com.microsoft"
_BITS = {"f32": 0, "int4": 4, "int8": 8}


@dataclass(frozen=True, slots=True)
class Layer:
    """The sizes of a layer."""

    hidden: int
    inner: int
    experts: int
    chosen: int
    bits: int
    block: int
    tokens: int

    @property
    def active_bytes(self) -> float:
        """The weights and scales that one token reads."""
        count = 3 * self.hidden * self.inner * self.chosen
        return count * (self.bits / 8 + 4 / self.block if self.bits else 4)

    def matrix(self, name: str, rows: int, columns: int, experts: int = 0) -> list[onnx.TensorProto]:
        """[experts, rows, columns], or [rows, columns] without experts; codes in the form of MatMulNBits or QMoE."""
        rng = np.random.default_rng(len(name) + rows)
        lead = (experts,) if experts else ()
        if not self.bits:
            shape = (*lead, rows, columns) if experts else (columns, rows)
            return [numpy_helper.from_array(rng.standard_normal(shape, np.float32) / 32, name)]
        blocks = columns // self.block
        width = self.block * self.bits // 8
        codes = rng.integers(0, 256, (*lead, rows, *((blocks * width,) if experts else (blocks, width))), np.uint8)
        scales = np.full((*lead, rows, blocks), 0.5 / (1 << self.bits), np.float32)
        return [numpy_helper.from_array(codes, name), numpy_helper.from_array(scales, f"{name}_scales")]

    def mixture(self, level: int = 0) -> onnx.ModelProto:
        """x and router values to y."""
        wide = 2 * self.inner
        attributes: dict[str, Any] = {"k": self.chosen, "activation_type": "swiglu", "swiglu_fusion": 1}
        attributes["normalize_routing_weights"] = 1
        tensors = self.matrix("w1", wide, self.hidden, self.experts)
        tensors += self.matrix("w2", self.hidden, self.inner, self.experts)
        if self.bits:
            attributes |= {"expert_weight_bits": self.bits, "block_size": self.block, "accuracy_level": level}
            inputs = ["x", "router", "w1", "w1_scales", "", "w2", "w2_scales"]
        else:
            inputs = ["x", "router", "w1", "", "w2"]
        node = helper.make_node("QMoE" if self.bits else "MoE", inputs, ["y"], domain=_DOMAIN, **attributes)
        router = helper.make_tensor_value_info("router", TensorProto.FLOAT, [self.tokens, self.experts])
        return self._model([node], tensors, [router])

    def dense(self, level: int = 0) -> onnx.ModelProto:
        """x to y; the router's values are an input, too, of which nothing is read."""
        inner = self.inner * self.chosen
        tensors = self.matrix("d1", 2 * inner, self.hidden) + self.matrix("d2", self.hidden, inner)
        nodes = [
            self._product("x", "d1", "wide", 2 * inner, self.hidden, level),
            helper.make_node("Split", ["wide"], ["gate", "linear"], axis=-1, num_outputs=2),
            helper.make_node("Sigmoid", ["gate"], ["sigmoid"]),
            helper.make_node("Mul", ["gate", "sigmoid"], ["swish"]),
            helper.make_node("Mul", ["swish", "linear"], ["gated"]),
            self._product("gated", "d2", "y", self.hidden, inner, level),
        ]
        return self._model(nodes, tensors, [])

    def _product(self, x: str, weights: str, y: str, rows: int, columns: int, level: int) -> onnx.NodeProto:
        if not self.bits:
            return helper.make_node("MatMul", [x, weights], [y])
        return helper.make_node(
            "MatMulNBits", [x, weights, f"{weights}_scales"], [y], domain=_DOMAIN, K=columns, N=rows, bits=self.bits,
            block_size=self.block, accuracy_level=level,
        )  # fmt: skip

    def _model(
        self, nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto], inputs: list[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [self.tokens, self.hidden]) for name in "xy")
        graph = helper.make_graph(nodes, "layer", [x, *inputs], [y], tensors)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def main() -> None:
    options = parsed()
    rows = []
    for form in options.forms.split(","):
        for tokens in map(int, options.tokens.split(",")):
            layer = Layer(
                options.hidden, options.inner, options.experts, options.chosen, _BITS[form], options.block, tokens
            )
            rows.append([form, str(tokens), *measured(layer, options)])
            print(*rows[-1], sep=" | ", flush=True)
    header = [
        "weights",
        "tokens",
        "mixture",
        "dense",
        "mixture / dense",
        "onnxruntime's mixture",
        "onnxruntime / engine",
    ]
    print(markdown(header, rows))


def measured(layer: Layer, options: Any) -> list[str]:
    """The times of the arms, and their ratios."""
    copies = max(2, int(_MIN_BYTES // layer.active_bytes)) if layer.tokens == 1 else 1
    mixture, dense = (make(options.level).SerializeToString() for make in (layer.mixture, layer.dense))
    # A mixture has other weights for other experts; a dense layer needs copies.
    arms = {
        "mixture": engine_runs([mixture], options.threads),
        "dense": engine_runs([dense] * copies, options.threads),
        "onnxruntime": onnxruntime_runs([mixture], options.threads),
    }
    rng, times = np.random.default_rng(1), dict[str, list[float]]()
    x = rng.standard_normal((layer.tokens, layer.hidden), np.float32)
    clock = time.process_time if options.cpu else time.perf_counter
    for number in range(options.rounds + 2):
        feed = {"x": x, "router": rng.standard_normal((layer.tokens, layer.experts), np.float32)}
        for name, runs in arms.items():
            given = feed if name != "dense" else {"x": x}
            time.sleep(0.02)  # other engines' threads stop spinning
            begin = clock()
            runs[number % len(runs)](given)
            if number >= 2:
                times.setdefault(name, []).append(clock() - begin)

    def ratio(first: str, second: str) -> str:
        return f"{median(a / b for a, b in zip(times[first], times[second], strict=True)):.2f}"

    shown = {name: f"{median(found) * 1e3:.2f} ms" for name, found in times.items()}
    return [
        shown["mixture"],
        shown["dense"],
        ratio("mixture", "dense"),
        shown["onnxruntime"],
        ratio("onnxruntime", "mixture"),
    ]


Runs = list[Callable[[dict[str, Array]], Any]]


def engine_runs(models: list[bytes], threads: int) -> Runs:
    """An inference of each model."""
    config = {"INFERENCE_NUM_THREADS": threads}
    return [Core().compile_model(model, "CPU", config).create_infer_request().infer for model in models]


def onnxruntime_runs(models: list[bytes], threads: int) -> Runs:
    """The same by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")

    def started(model: bytes) -> Callable[[dict[str, Array]], Any]:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return lambda feed: session.run(None, feed)

    return [started(model) for model in models]


def parsed() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=768, help="the length of an expert's inner rows")
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--chosen", type=int, default=8)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--level", type=int, default=0, help="accuracy_level: 4 permits activations of 8 bits")
    parser.add_argument("--forms", default="f32,int4,int8")
    parser.add_argument("--tokens", default="1,128")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu", action="store_true", help="CPU time of one thread")
    options = parser.parse_args()
    if options.cpu:
        options.threads = 1
    return options


if __name__ == "__main__":
    main()
