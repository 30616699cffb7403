"""Real networks with seeded weights, and answers computed by an independent runtime.

The `onnx` package ships nine classification networks with real structure and constant weights. Here they get random
weights, the same on every machine, so that a device can be checked on a whole network without a download. The logits
are compared, not the final Softmax's output: over random weights a Softmax tends to one-hot, which hides any error that
leaves the largest logit in place.

    model = light_model("resnet50")
    answer = run(model, light_input("resnet50"))
    assert relative_error(answer, light_answer("resnet50")) <= light_tolerance("resnet50")

Weights come from the raw output of PCG64, whose stream numpy guarantees, by float32 operations that round alike
everywhere; the distributions of `numpy.random.Generator`, which may change between releases, are not used.
The factors that keep every layer at unit variance and the answers are package data, written by
`benchmarks/calibrate_light_models.py` with onnxruntime; neither is needed to use this module.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from engine.errors import ModelError

FloatArray = npt.NDArray[np.float32]
Shape = tuple[int, ...]

LIGHT_MODELS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)

DATA = Path(__file__).parent / "data"
FACTORS_FILE = DATA / "light_factors.json"
ANSWERS_FILE = DATA / "light_answers.npz"

_SEED = 2024
# Initializers need not be graph inputs from IR version 4 on; the shipped files are of version 3.
_IR_VERSION = 4
_FLOAT = onnx.TensorProto.FLOAT
# Values drawn at a time: few enough that they and their transformed values stay in cache.
_CHUNK = 1 << 16
# Side of the input's constant blocks, in pixels.
_BLOCK = 32


def light_model(name: str) -> onnx.ModelProto:
    """Build the network `name` of `LIGHT_MODELS` with seeded weights, up to the logits.

    The model keeps the operators and the opset (9) of the file that `onnx` ships. It has one input,
    [1, 3, 224, 224] float32, and one output of 1000 logits. VGG19 takes 575 MB, the others 5 to 350 MB.
    Raises ModelError for an unknown name.
    """
    return seeded(name, factors(name))


def light_input(name: str) -> dict[str, FloatArray]:
    """Give the seeded input of the network `name`, by input name.

    Half of its variance is in blocks of 32 x 32 pixels: pooling would average out pure noise, so the result would
    hardly depend on the input.
    """
    (data,) = _data_inputs(_structure(name).graph)
    batch, channels, height, width = shape = _shape(data)
    blocks = _uniform(f"{name}/blocks", (batch, channels, height // _BLOCK, width // _BLOCK))
    noise = _uniform(f"{name}/noise", shape)
    noise += blocks.repeat(_BLOCK, axis=2).repeat(_BLOCK, axis=3)
    noise *= np.float32(math.sqrt(0.5))
    return {data.name: noise}


def light_answer(name: str) -> FloatArray:
    """Give the logits that onnxruntime computed for `light_model(name)` on `light_input(name)`."""
    _check_name(name)
    with np.load(ANSWERS_FILE, allow_pickle=False) as answers:
        return np.asarray(answers[name], dtype=np.float32)


def light_tolerance(name: str) -> float:
    """Give the largest `relative_error` that float32 rounding explains for the network `name`.

    A float32 dot product of length K, summed in any order, is off by about u * sqrt(K) of its own spread, u being
    the unit roundoff 2**-24 (roundings act as a random walk; Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., section 2.8). With every layer at unit variance a layer's error reaches the output with a
    gain near one, and the errors of different layers are independent: u * sqrt(sum of K). The answer and the
    result that it is compared with err alike, and the largest of 1000 errors lies about as many deviations out as
    the largest logit by which it is divided: a factor 2 on the whole, that is epsilon * sqrt(sum of K), covers both.
    """
    graph = _structure(name).graph
    shapes = dict(_float_tensors(graph))
    lengths = [_reduction(shapes[tensor]) for tensor, role in _roles(graph).items() if role is _weight_values]
    return float(np.finfo(np.float32).eps) * math.sqrt(sum(lengths))


def relative_error(actual: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """Give the largest absolute difference divided by the largest absolute expected value.

    NaN gives infinity. Raises ModelError if the shapes differ.
    """
    got, want = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    if got.shape != want.shape:
        raise ModelError(f"relative_error: the result has shape {got.shape}, expected {want.shape}")
    difference = float(np.max(np.abs(got - want)) / np.max(np.abs(want)))
    return difference if math.isfinite(difference) else math.inf


def without_softmax(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove every Softmax that directly produces a graph output; changes `model` and returns it.

    A model without one is returned unchanged.
    """
    graph = model.graph
    producers = {output: node for node in graph.node for output in node.output}
    for output in graph.output:
        node = producers.get(output.name)
        if node is not None and node.op_type == "Softmax":
            output.name = node.input[0]
            graph.node.remove(node)
    return model


def factors(name: str) -> dict[str, float]:
    """Give the committed factor of every Conv and Gemm weight of the network `name`, by tensor name."""
    _check_name(name)
    table: dict[str, dict[str, float]] = json.loads(FACTORS_FILE.read_text(encoding="utf-8"))
    return table[name]


def seeded(name: str, weight_factors: Mapping[str, float]) -> onnx.ModelProto:
    """Build the network `name` up to the logits, each Conv and Gemm weight multiplied by its factor.

    `light_model` passes the committed factors; the calibration, which finds them, passes its own.
    """
    model = without_softmax(_structure(name))
    graph = model.graph
    roles = _roles(graph)
    tensors = dict(_float_tensors(graph))
    data = _data_inputs(graph)
    integers = [tensor for tensor in graph.initializer if tensor.data_type != _FLOAT]
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    used = {tensor for node in nodes for tensor in node.input}
    for field, kept in ((graph.input, data), (graph.initializer, integers), (graph.node, nodes)):
        items = [item for item in kept if not isinstance(item, onnx.TensorProto) or item.name in used]
        del field[:]
        field.extend(items)
    for tensor, role in roles.items():
        values = role(_uniform(f"{name}/{tensor}", tensors[tensor]), weight_factors.get(tensor, 1.0))
        graph.initializer.append(_tensor(tensor, values))
    model.ir_version = _IR_VERSION
    return model


def _structure(name: str) -> onnx.ModelProto:
    _check_name(name)
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
    if not path.is_file():
        raise ModelError(f"light model `{name}`: {path} is missing; install the `onnx` package with its test data")
    return onnx.load(path)


def _check_name(name: str) -> None:
    if name not in LIGHT_MODELS:
        raise ModelError(f"unknown light model `{name}`; expected one of {', '.join(LIGHT_MODELS)}")


def _data_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    initialized = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initialized]


def _shape(value: onnx.ValueInfoProto) -> Shape:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _float_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, Shape]]:
    """Yield name and shape of every weight: float initializers and the outputs of ConstantOfShape."""
    shapes = {}
    for tensor in graph.initializer:
        if tensor.data_type == _FLOAT:
            yield tensor.name, tuple(tensor.dims)
        else:
            shapes[tensor.name] = tuple(int(dim) for dim in onnx.numpy_helper.to_array(tensor))
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            yield node.output[0], shapes[node.input[0]]


def _reduction(shape: Shape) -> int:
    """Give the number of products in one output of a weight [M, ...]; a Reshape may have put ones before M."""
    return math.prod(shape) // next(dim for dim in shape if dim > 1)


Role = Callable[[FloatArray, float], FloatArray]


def _weight_values(unit: FloatArray, factor: float) -> FloatArray:
    unit *= np.float32(factor)
    return unit


def _shift_values(unit: FloatArray, factor: float) -> FloatArray:
    return unit * np.float32(0.1)


def _gain_values(unit: FloatArray, factor: float) -> FloatArray:
    """Values in 0.82 .. 1.18: a variance has to be positive, and a gain near one keeps the layer's variance."""
    return np.float32(1.0) + unit * np.float32(0.1)


# The role of a tensor, by the operator that takes it and its position there.
_ROLES: dict[tuple[str, int], Role] = {
    ("Conv", 1): _weight_values,
    ("Conv", 2): _shift_values,
    ("Gemm", 1): _weight_values,
    ("Gemm", 2): _shift_values,
    ("BatchNormalization", 1): _gain_values,
    ("BatchNormalization", 2): _shift_values,
    ("BatchNormalization", 3): _shift_values,
    ("BatchNormalization", 4): _gain_values,
    ("Mul", 1): _gain_values,
    ("Add", 1): _shift_values,
}


def _roles(graph: onnx.GraphProto) -> dict[str, Role]:
    """Map every weight that is used to its role, looking through the Reshape or Unsqueeze that leads to it."""
    weights = {name for name, _ in _float_tensors(graph)}
    origin = {name: name for name in weights}
    roles: dict[str, Role] = {}
    for node in graph.node:
        if node.op_type in ("Reshape", "Unsqueeze") and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
            continue
        for position, tensor in enumerate(node.input):
            if tensor in origin:
                roles[origin[tensor]] = _ROLES[node.op_type, position]
    return roles


def _uniform(key: str, shape: Shape) -> FloatArray:
    """Draw from a uniform distribution of mean 0 and variance 1, the same values for one key everywhere."""
    generator = np.random.PCG64([_SEED, zlib.crc32(key.encode())])
    values: FloatArray = np.empty(math.prod(shape), dtype=np.float32)
    for start in range(0, values.size, _CHUNK):
        part = values[start : start + _CHUNK]
        raw = generator.random_raw((part.size + 1) // 2)
        part[:] = raw.astype("<u8", copy=False).view("<i4")[: part.size]
    values *= np.float32(math.sqrt(3.0) / 2**31)
    return values.reshape(shape)


def _tensor(name: str, values: FloatArray) -> onnx.TensorProto:
    raw = values.astype("<f4", copy=False).tobytes()
    return onnx.TensorProto(name=name, data_type=_FLOAT, dims=values.shape, raw_data=raw)
