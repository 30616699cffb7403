"""Damaged models: reading, compiling and running each gives a result or raises an `EngineError`.

Never in another exception, a crash, a hang, or more memory than `MEMORY` above what the process had.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import random
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from engine import Core, ExecutableNetwork
from engine.errors import Cancelled, DeadlineExceeded, EngineError, OutOfMemoryError
from engine.ir import TensorType
from engine.onnx import model_to_proto
from engine.ops.cases import all_cases
from engine.runtime.random_inputs import random_inputs

from .finding import Finding, note
from .growing import grow
from .makers import MAKERS
from .proto_mutations import MUTATIONS, damaged

LIMIT = 30.0
MEMORY = 4 << 30
INTERRUPTS = False
IS_KEPT = False

BASES = 400
DEADLINE = 1.0
GRACE = 15.0
RESIDENT_GROWTH = 1 << 30
"""The bytes by which a case may make the process grow: the models have some kilobytes."""

_devices: tuple[str, ...] = ("TEMPLATE", "CPU", "HETERO")


def prepare(devices: tuple[str, ...]) -> None:
    """Choose the devices."""
    global _devices
    _devices = devices


@functools.cache
def core() -> Core:
    """The core of all cases."""
    return Core()


@functools.lru_cache(BASES)
def base(index: int) -> bytes:
    """A valid model: a random graph, or a case of the operator suite."""
    if index % 2:
        model, _ = grow(index, MAKERS, most_nodes=10).model()
        return model_to_proto(model).SerializeToString()
    for attempt in itertools.count():
        case = random.Random(f"base {index} {attempt}").choice(list(all_cases().values()))
        if all(data is None or math.prod(data.shape) <= 4096 for data in case.inputs):
            return model_to_proto(case.model(as_constants=bool(attempt % 2))[0]).SerializeToString()
    raise AssertionError


def make(seed: int) -> tuple[bytes, str, random.Random]:
    """The mutant of a seed, the names of its changes, and what makes the further choices."""
    r = random.Random(f"mutant {seed}")
    data = base(r.randrange(BASES))
    made: list[str] = []
    if r.random() < 0.85:
        proto = onnx.ModelProto.FromString(data)
        for _ in range(r.choice((1, 1, 1, 2, 3))):
            mutation = r.choice(MUTATIONS)
            mutation(r, proto)
            made.append(mutation.__name__)
        data = proto.SerializeToString()
    if not made or r.random() < 0.05:
        data = damaged(r, data)
        made.append("bytes")
    return data, "+".join(made), r


def files(seed: int) -> dict[str, bytes]:
    """The mutant."""
    return {"model.onnx": make(seed)[0]}


def run(seed: int) -> str:
    """Read, compile and run a mutant."""
    note("making the mutant")
    data, made, r = make(seed)
    before = resident()
    outcome = attempt(data, r, made)
    grown = resident() - before
    if grown > RESIDENT_GROWTH:
        raise Finding("memory", f"{made}: the process has grown by {grown >> 20} MiB; the outcome was {outcome}")
    return outcome


def attempt(data: bytes, r: random.Random, made: str) -> str:
    """Take a model as far as it goes; returns how far that was."""
    device = r.choice(_devices)
    device = "HETERO:CPU,TEMPLATE" if device == "HETERO" else device
    stage = "read"
    try:
        note(f"reading: {made}")
        model = _read(data, r)
        note(f"compiling for {device}: {made}")
        stage = "compile"
        network = core().compile_model(model, device)
        note(f"running on {device}: {made}")
        stage = "run"
        return infer(network, r.randrange(100))
    except OutOfMemoryError:
        return f"{stage}: out of memory"
    except EngineError as e:
        if not str(e).strip():
            raise Finding("empty message", f"{made}: {e!r}") from e
        return f"{stage}: refused"


def infer(network: ExecutableNetwork, seed: int) -> str:
    """Run a network on random inputs with a deadline; one that nothing can interrupt is a finding."""
    feeds = _inputs(network, seed)
    if feeds is None:
        return "compiled; inputs too large"
    request = network.create_infer_request()
    request.start_async(feeds, deadline=DEADLINE)
    try:
        request.wait(GRACE)
    except (DeadlineExceeded, Cancelled) as e:
        if request.state.name != "IDLE":
            raise Finding("not interruptible", f"an inference runs {GRACE} s after its deadline of {DEADLINE} s") from e
        return "run: deadline"
    for index, port in enumerate(network.outputs):
        _check_result(port, request.results[index])
    return "run"


def _check_result(port: Any, value: Any) -> None:
    if isinstance(port.type, TensorType) and isinstance(value, np.ndarray) and not port.shape.accepts(value.shape):
        raise Finding("shape contradicts the port", f"{port.name}: {port.type}, got {value.shape}")


def _inputs(network: ExecutableNetwork, seed: int) -> dict[str, Any] | None:
    shapes: dict[str, tuple[int, ...]] = {}
    symbols: dict[str, int] = {}
    for port in network.inputs:
        if not isinstance(port.type, TensorType):
            continue
        dims = list(port.shape) if port.shape.rank.is_static else [3]
        lengths = []
        for dim in dims:
            if isinstance(dim, int):
                lengths.append(dim)
            elif not dim.is_dynamic:
                lengths.append(dim.min)
            else:
                length = max(dim.min, 3) if dim.max is None else min(max(dim.min, 3), dim.max)
                lengths.append(symbols.setdefault(dim.symbol, length) if dim.symbol is not None else length)
        shapes[port.name] = tuple(lengths)
        if math.prod(lengths) > 1 << 22:
            return None
    return random_inputs(network.inputs, seed=seed, shapes=shapes)


def _read(data: bytes, r: random.Random) -> Any:
    """From memory or, as external data needs it, from a folder."""
    if r.random() < 0.8:
        return core().read_model(data)
    folder = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}-{threading.get_ident()}"
    folder.mkdir(exist_ok=True)
    try:
        (folder / "weights.bin").write_bytes(b"\1" * 4096)
        (folder / "model.onnx").write_bytes(data)
        return core().read_model(folder / "model.onnx")
    finally:
        shutil.rmtree(folder)


def resident() -> int:
    """The most memory that the process has had, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0
