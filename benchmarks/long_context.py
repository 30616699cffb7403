"""Tokens after 16,384 and 65,536 others: memory, and attention's rate, beside onnxruntime and openvino.

    python benchmarks/long_context.py                                          # 8 layers, ten minutes, 8 GB
    python benchmarks/long_context.py --lengths 4096 --rounds 1 --layers 2     # a quick look

The model is Llama-like with seeded weights of 8 bits; keys and values are random, since a prompt would take minutes:
this engine loads a saved state, the others get arrays. Each engine and precision of keys and values runs in a process
of its own, in alternating blocks; times are medians.

"computed" is the memory of keys and values, with the scales of 8 bits, and of the weights; "memory" is what the process
has more than before it read the model, without pages of files. "GB/s" are the bytes of keys and values divided by the
time that a token takes longer than one after 64 tokens; "of a read" is this relative to a plain read of memory by as
many threads, which alternates with the blocks. Both are in CPU time, which depends less on what else runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from comparison.read import ReadBandwidth
from comparison.report import markdown
from generating.llama import Llama
from generating.models import write_model

from engine.native import cpu_features

_REST_SECONDS = 0.3
_SHORT = 64
_TILE = 1024
_FREE = 64
"""Positions that a block of tokens may add."""
_SCALE = 0.03
"""Of onnxruntime's keys and values of 8 bits."""


def main() -> int:
    options = parsed()
    lengths = [int(each) for each in options.lengths.split(",")]
    width = options.heads * options.head_size
    model = Llama(
        options.layers, width, options.heads, options.kv_heads, 2 * width, 8000, max(lengths) + _FREE * options.rounds
    )
    read = ReadBandwidth(options.threads)
    print(f"CPU: {cpu_features().model}; {options.threads} threads; a plain read {read.measure():.1f} GB/s")
    print(
        f"{options.layers} layers, {options.heads} heads of {options.head_size}, {options.kv_heads} of them with keys\n"
    )
    with tempfile.TemporaryDirectory() as made:
        path = Path(options.folder or made) / f"{model.layers}x{width}x{model.positions}" / "model.onnx"
        if not path.exists():
            write_model(model, "int8", path.parent)
        for length in lengths:
            print(f"## {length} tokens\n", flush=True)
            print(measured(options, model, path, length, read), "\n", flush=True)
    return 0


def measured(options: argparse.Namespace, model: Llama, path: Path, length: int, read: ReadBandwidth) -> str:
    state = path.with_name(f"{length}.state")
    if not state.exists():
        saving = multiprocessing.get_context("spawn").Process(target=save_state, args=(path, length, state))
        saving.start()
        saving.join()
        if saving.exitcode:
            raise SystemExit(f"the state of {length} tokens could not be saved")
    workers: dict[str, _Worker] = {}
    for name in options.engines.split(","):
        try:
            workers[name] = _Worker(name, path, length, options.threads, model)
        except RuntimeError as e:
            print(f"Without {name}: {e}\n", flush=True)
    found = {name: _Found() for name in workers}
    for turn in range(options.rounds + 1):
        for count in (_SHORT, length):
            for name, worker in workers.items():
                time.sleep(_REST_SECONDS)
                rate = read_rate(read)
                seconds, cpu = worker.call("block", count, options.tokens)
                if turn:
                    found[name].add(count, seconds, cpu, rate)
    for name, worker in workers.items():
        found[name].memory = worker.call("memory")
        worker.close()
    weights = sum(file.stat().st_size for file in path.parent.glob("model.onnx*"))
    return markdown(
        ["", "ms", "ms of CPU", "GB/s", "of a read", "memory, MB", "of computed", "peak, with files"],
        [row(name, each, model, length, weights, options.threads) for name, each in found.items()],
    )


def read_rate(read: ReadBandwidth) -> float:
    """GB/s of a plain read, by the CPU time of its threads."""
    at, used = time.perf_counter(), time.process_time()
    rate = read.measure()
    return rate * (time.perf_counter() - at) * read.threads / (time.process_time() - used)


def row(name: str, found: _Found, model: Llama, length: int, weights: float, threads: int) -> list[str]:
    size = model.head_size + 4 if name.endswith("8") else 4 * model.head_size
    cache = 2 * model.layers * model.kv_heads * size * length
    computed = (cache + weights) / 1e6
    rates = [cache * threads / (a - b) / 1e9 for a, b in zip(found.cpu[length], found.cpu[_SHORT], strict=True)]
    shares = [rate / read for rate, read in zip(rates, found.reads[length], strict=True)]
    held, peak = found.memory
    return [
        name,
        f"{1e3 * median(found.wall[length]):.1f}",
        f"{1e3 * median(found.cpu[length]):.1f}",
        f"{median(rates):.1f}",
        f"{median(shares):.2f}",
        f"{held:.0f}",
        f"{held / computed:.2f}",
        f"{peak:.0f}",
    ]


@dataclass(slots=True)
class _Found:
    """Seconds of tokens by the number of tokens before, rates of plain reads in GB/s, and memory in MB."""

    wall: dict[int, list[float]] = field(default_factory=dict)
    cpu: dict[int, list[float]] = field(default_factory=dict)
    reads: dict[int, list[float]] = field(default_factory=dict)
    memory: tuple[float, float] = (0.0, 0.0)

    def add(self, length: int, seconds: float, cpu: float, rate: float) -> None:
        for kept, value in ((self.wall, seconds), (self.cpu, cpu), (self.reads, rate)):
            kept.setdefault(length, []).append(value)


# -- engines ----------------------------------------------------------------------------------------------------------


def values(model: Llama, length: int, seed: int) -> np.ndarray:
    """Keys or values of a layer: a thousand random positions, repeated."""
    shape = (1, model.kv_heads, min(length, _TILE), model.head_size)
    tile = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return np.ascontiguousarray(np.tile(tile, (1, 1, -(-length // shape[2]), 1))[:, :, :length])


def network_of(path: Path, threads: int, precision: str) -> Any:
    from engine import Core
    from engine.passes import MakeStateful

    positions = int(json.loads((path.parent / "genai_config.json").read_text())["model"]["context_length"])
    model = Core().read_model(path)
    MakeStateful(bound=positions).run_on_model(model)
    return Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": precision})


def save_state(path: Path, length: int, state: Path) -> None:

    request = network_of(path, 1, "f32").create_infer_request()
    for seed, variable in enumerate(request.query_state().values()):
        _, heads, _, size = variable.shape
        variable.set(values(Llama(1, heads * size, heads, heads, 1, 1), length, seed))
    request.save(state)


class ThisEngine:
    """Two requests: one with few tokens, and one with the loaded state."""

    def __init__(self, path: Path, length: int, threads: int, model: Llama, precision: str) -> None:
        network = network_of(path, threads, precision)
        self.length = length
        self.requests = {_SHORT: network.create_infer_request(), length: network.create_infer_request()}
        for seed, variable in enumerate(self.requests[_SHORT].query_state().values()):
            variable.set(values(model, _SHORT, seed))
        self.requests[length].load(path.with_name(f"{length}.state"))

    def step(self, length: int, before: int) -> None:
        ids, mask = np.ones((1, 1), np.int64), np.ones((1, before + 1), np.int64)
        self.requests[length].infer({"input_ids": ids, "attention_mask": mask})


class Onnxruntime:
    """Past and present in one buffer, as onnxruntime-genai has them."""

    def __init__(self, path: Path, length: int, threads: int, model: Llama, precision: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.is_narrow = precision == "int8"
        path = with_bytes(path) if self.is_narrow else path
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.package, self.model = onnxruntime, model
        self.caches = {count: self.buffers(count) for count in (_SHORT, length)}

    def buffers(self, length: int) -> dict[str, Any]:
        m, made = self.model, {}
        for index in range(m.layers):
            for part, name in enumerate(("key", "value")):
                kind = np.int8 if self.is_narrow else np.float32
                room = np.zeros((1, m.kv_heads, length + _FREE, m.head_size), kind)
                given = values(m, length, 2 * index + part)
                room[:, :, :length] = np.clip(given / _SCALE, -127, 127) if self.is_narrow else given
                made[f"{index}.{name}"] = self.package.OrtValue.ortvalue_from_numpy(room)
        return made

    def step(self, length: int, before: int) -> None:
        before = length + (before - length) % (_FREE - 1)  # the room of the buffer
        binding = self.session.io_binding()
        binding.bind_cpu_input("input_ids", np.ones((1, 1), np.int64))
        binding.bind_cpu_input("attention_mask", np.ones((1, before + 1), np.int64))
        for name, value in self.caches[length].items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        binding.bind_output("logits")
        self.session.run_with_iobinding(binding)


def with_bytes(path: Path) -> Path:
    """The model with keys and values of 8 bits, which have one scale for all, beside the one at `path`."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(path, load_external_data=False)
    model.graph.initializer.append(numpy_helper.from_array(np.array([_SCALE], np.float32), "cache_scale"))
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input.extend([""] * (12 - len(node.input)) + ["cache_scale"] * 2)
            settings = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
            node.attribute.extend(helper.make_attribute(name, value) for name, value in settings.items())
    for value in (*model.graph.input, *model.graph.output):
        if value.name.startswith(("past", "present")):
            value.type.tensor_type.elem_type = onnx.TensorProto.INT8
    made = path.with_name("bytes.onnx")
    onnx.save(model, made)
    return made


class Openvino:
    """The model in the form of its own exporter, in which it fuses a cache with the attention."""

    def __init__(self, path: Path, length: int, threads: int, model: Llama, precision: str) -> None:
        import openvino
        from generating.openvino_model import write_openvino

        exported = path.parent / "openvino" / "model.xml"
        if not exported.exists():
            write_openvino(model, path, "int8", exported)
        config = {
            "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": precision, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }  # fmt: skip
        compiled = openvino.Core().compile_model(exported, "CPU", config)
        self.requests = {count: compiled.create_infer_request() for count in (_SHORT, length)}
        for count, request in self.requests.items():
            for seed, variable in enumerate(request.query_state()):
                variable.state = openvino.Tensor(values(model, count, seed))

    def step(self, length: int, before: int) -> None:
        inputs = {
            "input_ids": np.ones((1, 1), np.int64), "attention_mask": np.ones((1, before + 1), np.int64),
            "position_ids": np.full((1, 1), before), "beam_idx": np.zeros(1, np.int32),
        }  # fmt: skip
        self.requests[length].infer(inputs, share_inputs=True)


ENGINES: dict[str, tuple[str, Callable[..., Any], str]] = {
    "engine f32": ("engine", ThisEngine, "f32"),
    "engine int8": ("engine", ThisEngine, "int8"),
    "onnxruntime f32": ("onnxruntime", Onnxruntime, "f32"),
    "onnxruntime int8": ("onnxruntime", Onnxruntime, "int8"),
    "openvino f32": ("openvino", Openvino, "f32"),
    "openvino u8": ("openvino", Openvino, "u8"),
}


# -- processes --------------------------------------------------------------------------------------------------------


class _Worker:
    """The caller's side of a process that runs one engine."""

    def __init__(self, name: str, path: Path, length: int, threads: int, model: Llama) -> None:
        package = ENGINES[name][0]
        if importlib.util.find_spec(package) is None:
            raise RuntimeError(f"{package} is not installed")
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, name, path, length, threads, model), daemon=True)
        self._process.start()
        other.close()
        self._answer()

    def call(self, *command: Any) -> Any:
        self._pipe.send(command)
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    def _answer(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the process ended with status {self._process.exitcode}") from None
        if kind == "error":
            raise RuntimeError(value)
        return value


def _serve(pipe: Connection, name: str, path: Path, length: int, threads: int, model: Llama) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    package, kind, precision = ENGINES[name]
    before: dict[int, int] = {}
    try:
        importlib.import_module(package)
        base = _resident("RssAnon")
        engine = kind(path, length, threads, model, precision)
        pipe.send(("ok", None))
        while True:
            command, *arguments = pipe.recv()
            if command == "memory":
                pipe.send(("ok", (_resident("RssAnon") - base, _resident("VmHWM"))))
                continue
            count, tokens = arguments
            wall, cpu = [], []
            for _ in range(tokens):
                at, used = time.perf_counter(), time.process_time()
                engine.step(count, before.setdefault(count, count))
                before[count] += 1
                wall.append(time.perf_counter() - at)
                cpu.append(time.process_time() - used)
            pipe.send(("ok", (median(wall), median(cpu))))
    except Exception as e:
        pipe.send(("error", f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else traceback.format_exc()}"))


def _resident(name: str) -> float:
    """Resident memory of this process in MB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[name].split()[0]) * 1024 / 1e6


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--lengths", default="16384,65536")
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=9, help="tokens of a block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where models and states are written and kept; default: a temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
