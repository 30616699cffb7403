"""Random valid graphs: every device, onnxruntime, an exported blob and a written model give equal results."""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from engine import Core, ExecutableNetwork
from engine.errors import ModelWriteError, UnsupportedError
from engine.ir import Model, Node, TensorType
from engine.ir.element_type import f64, i8, u8
from engine.onnx import model_to_proto

from .finding import Finding, note
from .growing import grow
from .makers import MAKERS
from .rounding import Answers, Array, Unanswerable

LIMIT = 60.0
MEMORY = 0
INTERRUPTS = False
IS_KEPT = False

# Operators that onnxruntime computes differently, on purpose or by mistake; models with one are not compared with it.
OTHERWISE = {
    "Resize": "rounds coordinates to f32, and lengths before scales",
    "RNN": "a sequence of length 0 gives zeros instead of the initial state",
    "GRU": "a sequence of length 0 gives zeros instead of the initial state",
    "LSTM": "a sequence of length 0 gives zeros instead of the initial state",
    "Attention": "requires a mask as long as past and present together",
    "Mod": "stops the process at a divisor of 0",
    "MeanVarianceNormalization": "divides by 0 where all elements are equal",
    "ReduceProd": "saturates products of integers, which wrap in other operators",
    "GroupNormalization": "subtracts the squared mean from the mean of squares; NaN for 100 + 0.01 * uniform(-1, 1)",
}

# Its sigmoid and softmax are exact to about 1e-7, not to the last bits of small values.
ORACLE_SLACK = 2e-6

_devices: tuple[str, ...] = ("TEMPLATE", "CPU", "HETERO")


def prepare(devices: tuple[str, ...]) -> None:
    """Choose the devices."""
    global _devices
    _devices = devices
    onnxruntime.set_default_logger_severity(4)


@functools.cache
def core() -> Core:
    """The core of all cases."""
    return Core()


def make(seed: int) -> tuple[Model, dict[str, Array], random.Random]:
    """The model of a seed, its inputs, and what makes the further choices."""
    model, feeds = grow(seed, MAKERS).model()
    return model, feeds, random.Random(f"running graph {seed}")


def files(seed: int) -> dict[str, bytes]:
    """The model and its inputs."""
    model, feeds, _ = make(seed)
    stream = io.BytesIO()
    np.savez(stream, **{name: array for name, array in feeds.items() if array.dtype.isbuiltin == 1})
    return {"model.onnx": model_to_proto(model).SerializeToString(), "inputs.npz": stream.getvalue()}


def run(seed: int) -> str:
    """Compare a random graph on all devices."""
    note("making the graph")
    model, feeds, chooser = make(seed)
    return compare(model, feeds, chooser)


def compare(model: Model, feeds: Mapping[str, Array], chooser: random.Random, devices: tuple[str, ...] = ()) -> str:
    """Run a model in every way and check all results. Returns whether onnxruntime has confirmed them."""
    note("evaluating the graph")
    try:
        right = Answers(model, feeds)
    except Unanswerable:
        return "no single answer"
    for device in devices or _devices:
        _on_device(model, feeds, right, device, chooser)
    _written(model, feeds, right)
    return _in_onnxruntime(model, feeds, right)


def _on_device(model: Model, feeds: Mapping[str, Array], right: Answers, device: str, chooser: random.Random) -> None:
    config: dict[str, object] = {}
    if device == "HETERO":
        device, model = "HETERO:CPU,TEMPLATE", _scattered(model, chooser)
        config["PARTITION_STRATEGY"] = chooser.choice(("potential", "rollback", "restriction_map"))
        config["PARTITION_MODE"] = chooser.choice(("auto", "min_subgraphs", "connected"))
    if device == "CPU":
        config["COMPILE_EFFORT"] = chooser.choice(("none",) * 15 + ("quick",))
    if device == "OPENCL":
        config["INFERENCE_PRECISION_HINT"] = "f32"
    note(f"compiling for {device}")
    try:
        network = core().compile_model(model, device, config)
    except UnsupportedError as e:
        # Nodes that run as one have to be on one device, so most affinities at random are refused, as documented.
        if device == "OPENCL" and str(e).startswith("OPENCL cannot run"):  # as the message advises
            device, config = "HETERO:OPENCL,CPU", {"DEVICE_PROPERTIES": {"OPENCL": config}}
        elif not any(why in str(e) for why in ("different affinities", "some of which are on other devices")):
            raise
        for node in model.ordered_nodes():
            node.rt_info.pop("affinity", None)
        network = core().compile_model(model, device, config)
    note(f"running on {device}")
    found = _results(network, feeds)
    _check(f"{device} {config or ''}", found, right)
    note(f"exporting from {device}")
    stream = io.BytesIO()
    network.export_model(stream)
    note(f"importing into {device}")
    again = core().import_model(stream.getvalue(), device)
    note(f"running what {device} imported")
    for index, (one, other) in enumerate(zip(found, _results(again, feeds), strict=True)):
        if not _is_equal(one, other):
            raise Finding("import differs", f"{device} {config}: result {index}: {one!r:.200} became {other!r:.200}")


def _scattered(model: Model, chooser: random.Random) -> Model:
    """The model with affinities at random, in longer and shorter runs."""
    scattered, device = model.clone(), "CPU"
    chance = chooser.choice((0.0, 0.2, 0.5, 1.0))
    if chance:
        for node in scattered.ordered_nodes():
            device = chooser.choice(("CPU", "TEMPLATE")) if chooser.random() < chance else device
            if node.op_type not in ("Parameter", "Constant", "Result"):
                node.rt_info["affinity"] = device
    return scattered


def _written(model: Model, feeds: Mapping[str, Array], right: Answers) -> None:
    note("writing the model")
    try:
        data = model_to_proto(model).SerializeToString()
    except ModelWriteError:
        return
    note("reading the written model")
    network = core().compile_model(data, "TEMPLATE")
    note("running the written model")
    _check("written and read", _results(network, feeds), right)


def _in_onnxruntime(model: Model, feeds: Mapping[str, Array], right: Answers) -> str:
    nodes = model.ordered_nodes()
    outputs = [output for node in nodes for output in node.outputs if isinstance(output.type, TensorType)]
    # onnxruntime computes some functions of f64 by constants of f32, and gives types that numpy lacks as integers.
    is_odd = any(o.element_type is f64 or o.element_type.numpy.isbuiltin != 1 for o in outputs)
    is_odd = is_odd or any(_is_mixed_product(node) for node in nodes)
    if is_odd or any(node.op_type in OTHERWISE for node in nodes):
        return "confirmed, without onnxruntime"
    note("running in onnxruntime")
    try:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        data = model_to_proto(model).SerializeToString()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        found = session.run(None, dict(feeds))
    except Exception:  # classes of its own, for operators that it does not implement
        return "confirmed, onnxruntime refuses"
    _check("onnxruntime", found, right, ORACLE_SLACK)
    return "confirmed"


def _is_mixed_product(node: Node) -> bool:
    """Whether a node multiplies u8 by i8: without VNNI, onnxruntime saturates sums of two products at 16 bits."""
    if node.op_type != "MatMulInteger":
        return False
    return [value.element_type for value in node.input_values[:2] if value is not None] == [u8, i8]


def _results(network: ExecutableNetwork, feeds: Mapping[str, Array]) -> list[Any]:
    result = network(feeds)
    return [result[index] for index in range(len(network.outputs))]


def _check(where: str, found: list[Any], right: Answers, slack: float = 0.0) -> None:
    for index, got in enumerate(found):
        if wrong := right.difference(index, got, slack):
            raise Finding(f"wrong result of {where.split()[0]}", f"{where}: result {index} {wrong}")


def _is_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray):
        return repr(one) == repr(other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()
