"""Checks this engine on an exported network: its results beside onnxruntime's, and which nodes are not native."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from engine import Core
from engine.errors import EngineError

Arrays = Mapping[str, np.ndarray]


@dataclass(slots=True)
class Checked:
    """The findings for one network.

    Attributes:
        name: the file without its suffix.
        problem: why there is no result, or how it is wrong; empty if it is right.
        error: the largest deviation of an output, relative to the outputs' largest value.
        tolerance: what two correct results may deviate.
        milliseconds: by engine, if measured.
        lengths: the lengths other than the export's at which results were also compared.
        nodes: number of nodes as the device answers for them.
        others: the nodes that are not native: (operator, reason) -> number.
        scales: by index, the largest values that outputs have before the Clip that makes them.
    """

    name: str
    problem: str = ""
    error: float = 0.0
    tolerance: float = 0.0
    lengths: str = ""
    nodes: int = 0
    others: Counter[tuple[str, str]] = field(default_factory=Counter)
    milliseconds: dict[str, float] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)


def inputs_of(path: Path) -> dict[str, np.ndarray]:
    """The inputs beside a network."""
    with np.load(path.with_suffix(".npz")) as arrays:
        return {name: arrays[name] for name in arrays.files}


def check(path: Path, core: Core, device: str) -> Checked:
    """Read, query, run and compare one network."""
    found, inputs = Checked(path.name.removesuffix(".onnx")), inputs_of(path)
    try:
        session = _session(path)
        found.tolerance = tolerance_of(path)
        expected = session.run(None, inputs)
    except Exception as e:  # whatever the peer raises
        found.problem = f"also refused by onnxruntime: {_line(e)}"
        session = None
    try:
        _count_nodes(found, path, core, device)
        network = core.compile_model(path, device, {"CACHE_DIR": ""})
        results = list(network.create_infer_request().infer(inputs).values())
        if session is None:
            return found
        found.scales = _before_clips(path, inputs)
        _compare(found, results, expected)
        _check_other_lengths(found, session, network, inputs)
    except EngineError as e:
        found.problem = f"{found.problem and 'also refused by onnxruntime: '}{type(e).__name__}: {_line(e)}"
    return found


def _session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _before_clips(path: Path, inputs: Arrays) -> dict[int, float]:
    """The largest values that the outputs made by a Clip have before it, by the outputs' indices."""
    model = onnx.load(path)
    makers = {name: node for node in model.graph.node for name in node.output if node.op_type == "Clip"}
    names = {index: makers[each.name].input[0] for index, each in enumerate(model.graph.output) if each.name in makers}
    if not names:
        return {}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names.values())
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = zip(names, session.run(list(names.values()), dict(inputs)), strict=True)
    return {index: float(np.abs(value).max(initial=0)) for index, value in found}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _count_nodes(found: Checked, path: Path, core: Core, device: str) -> None:
    model = core.read_model(path)
    answer = core.query_model(model, device)
    for node in model.ordered_nodes():
        if node.friendly_name not in answer.nodes or node.op_type in ("Parameter", "Constant", "Result"):
            continue
        found.nodes += 1
        support = answer[node.friendly_name]
        if support.level.value != "native":
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            found.others[operator, f"{support.level.value}: {support.reason}"] += 1


def _compare(found: Checked, results: list[Any], expected: list[Any], where: str = "") -> None:
    if len(results) != len(expected):
        found.problem = f"{len(results)} outputs{where}, expected {len(expected)}"
        return
    for index, (answer, right) in enumerate(zip(results, expected, strict=True)):
        problem = _difference(found, answer, right, found.scales.get(index, 1e-30))
        if problem:
            found.problem = f"output {index}{where}: {problem}"
            return


def _difference(found: Checked, answer: Any, right: Any, scale: float = 1e-30) -> str:
    """How an output is wrong; empty if it is right. ZipMap gives a list of dictionaries.

    `scale` is a value to which errors are relative if no value of the output is larger.
    """
    if isinstance(right, list):
        pairs = zip(answer, right, strict=True)
        return next((text for a, r in pairs if (text := _difference(found, a, r))), "")
    if isinstance(right, dict):
        if list(answer) != list(right):
            return f"keys {list(answer)}, expected {list(right)}"
        return _difference(found, np.array(list(answer.values())), np.array(list(right.values())))
    answer = np.asarray(answer)
    if answer.shape != right.shape:
        return f"shape {answer.shape}, expected {right.shape}"
    if not np.issubdtype(right.dtype, np.floating):
        wrong = int(np.count_nonzero(answer.astype(right.dtype) != right))
        return f"{wrong} of {right.size} {right.dtype} values differ" if wrong else ""
    if not right.size:
        return ""
    if not np.array_equal(np.isfinite(answer), np.isfinite(right)):
        return "other values are infinite or not numbers"
    finite = np.isfinite(right)
    difference = np.abs(np.where(finite, answer, 0).astype(np.float64) - np.where(finite, right, 0))
    error = float(difference.max() / max(np.abs(np.where(finite, right, 0)).max(), scale))
    found.error = max(found.error, error)
    return f"deviates by {error:.1e}, expected at most {found.tolerance:.1e}" if error > found.tolerance else ""


def _check_other_lengths(found: Checked, session: Any, network: Any, inputs: Arrays) -> None:
    """One more of each length that the file leaves open, where onnxruntime also accepts that."""
    if found.problem:
        return
    opened = {dim for value in session.get_inputs() for dim in value.shape if isinstance(dim, str)}
    if not opened:
        return
    changed = {value.name: _lengthened(inputs[value.name], value.shape) for value in session.get_inputs()}
    try:
        expected = session.run(None, changed)
    except Exception:  # the network is for some lengths only
        return
    found.lengths = ", ".join(sorted(opened))
    shapes = {name: list(value.shape) for name, value in changed.items()}
    _compare(found, list(network.create_infer_request().infer(changed).values()), expected, f" for {shapes}")


def _lengthened(value: np.ndarray, shape: list[Any]) -> np.ndarray:
    for axis, dim in enumerate(shape):
        if not isinstance(dim, int):
            value = np.concatenate([value, np.take(value, [0], axis)], axis)
    return value


def tolerance_of(path: Path) -> float:
    """The deviation of two correct results in f32, relative to the largest value.

    As `engine.testing.networks.rounding_tolerance`: a sum of K terms is off by about u sqrt(K) of its spread, and
    errors of layers are independent; but K counts for each node, known or not, and elementwise nodes, softmaxes and
    norms also round, each by some units. The factor of 8 is 2 for two results times 4 for transforms of convolutions.
    """
    model = onnx.load(path, load_external_data=False)
    sizes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    terms = 1.0
    for node in model.graph.node:
        terms += _terms(node, sizes)
    return 8 * float(np.finfo(np.float32).eps) / 2 * math.sqrt(terms)


def _terms(node: onnx.NodeProto, sizes: Mapping[str, tuple[int, ...]]) -> float:
    """The products that a node sums up for one result; 4 for one that sums none."""
    shape = sizes.get(node.input[1], ()) if len(node.input) > 1 else ()
    if node.op_type in ("Conv", "ConvTranspose") and shape:
        return math.prod(shape[1:])
    if node.op_type in ("MatMul", "Gemm"):
        return shape[-2] if len(shape) > 1 else 64
    if node.op_type in ("SVMClassifier", "SVMRegressor"):  # a sum over the support vectors, of distances
        lengths = {each.name: len(each.floats) for each in node.attribute}
        vectors = max(1, lengths.get("coefficients", 0))
        return vectors + lengths.get("support_vectors", 0) / vectors
    if node.op_type in ("LSTM", "GRU", "RNN") and shape:
        return 16 * (shape[-1] + shape[1])
    if node.op_type in ("Loop", "Scan", "If", "Attention", "ReduceSum", "ReduceMean", "Einsum"):
        return 64
    return 4
