"""Builds ONNX models in exporters' form, with seeded weights that keep layer outputs at a moderate scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TypeProto, ValueInfoProto, helper, numpy_helper
from onnx.defs import get_schema
from onnx.shape_inference import infer_node_outputs

from engine.startup import dataclass

Array = npt.NDArray[Any]

OPSET = 20
IR_VERSION = 10
# Shapes do not depend on larger constants.
_MAX_SHAPE_VALUES = 16
# Approximate factor by which an activation scales the second moment; weights compensate it with 1 / sqrt.
AFTER_RELU = math.sqrt(2.0)
AFTER_SILU = 1.57
AFTER_GELU = 1.53


@dataclass(frozen=True, slots=True, eq=False)
class SeededNetwork:
    """A model with seeded weights, and seeded inputs for it, by name."""

    model: onnx.ModelProto
    inputs: Mapping[str, Array]


class NetworkBuilder:
    """Collects nodes, weights and inputs under unique names, and records the shape of every value.

    The same calls in the same order with the same seed give the same model, byte for byte.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._random = np.random.Generator(np.random.PCG64([seed, *name.encode()]))
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._small: dict[str, onnx.TensorProto] = {}
        self._types: dict[str, TypeProto] = {}
        self._inputs: dict[str, Array] = {}

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape of a value that was added before, by its name."""
        return tuple(dim.dim_value for dim in self._types[value].tensor_type.shape.dim)

    # -- values ---------------------------------------------------------------------------------------------

    def input(self, name: str, *shape: int) -> str:
        """Add a float32 input; its values are uniform, of mean 0 and variance 1."""
        return self._add_input(name, self.uniform(shape, 1.0))

    def index_input(self, name: str, count: int, *shape: int) -> str:
        """Add an int64 input; its values are drawn from 0 to `count` - 1."""
        return self._add_input(name, self._random.integers(0, count, shape))

    def uniform(self, shape: Sequence[int], deviation: float) -> Array:
        """Draw float32 values of mean 0."""
        values = self._random.random(tuple(shape), dtype=np.float32)
        values -= np.float32(0.5)
        values *= np.float32(deviation * math.sqrt(12.0))
        return values

    def constant(self, value: npt.ArrayLike) -> str:
        """Add an initializer, and return its name."""
        array = np.asarray(value)
        name = f"w{len(self._initializers)}"
        tensor = numpy_helper.from_array(array, name)
        self._initializers.append(tensor)
        self._types[name] = helper.make_tensor_type_proto(tensor.data_type, array.shape)
        if array.size <= _MAX_SHAPE_VALUES:
            self._small[name] = tensor
        return name

    def scalar(self, value: float) -> str:
        """Add a float32 initializer of rank 0."""
        return self.constant(np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        """Add an int64 initializer of rank 1."""
        return self.constant(np.array(values, np.int64))

    def weight(self, *shape: int, fan_in: int, gain: float = 1.0) -> str:
        """Add weights; sums of `fan_in` products with unit-variance inputs have the standard deviation `gain`."""
        return self.constant(self.uniform(shape, gain / math.sqrt(fan_in)))

    def bias(self, length: int, deviation: float = 0.1) -> str:
        """Add a random vector whose elements have this standard deviation."""
        return self.constant(self.uniform((length,), deviation))

    # -- nodes ----------------------------------------------------------------------------------------------

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output, which is returned."""
        return self.add_many(op_type, *inputs, outputs=1, **attributes)[0]

    def add_many(self, op_type: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node, and return its outputs."""
        stem = f"{op_type.lower()}_{len(self._nodes)}"
        names = [stem if index == 0 else f"{stem}_{index}" for index in range(outputs)]
        node = helper.make_node(op_type, inputs, names, name=f"node_{stem}", **attributes)
        self._nodes.append(node)
        types = {name: self._types[name] for name in inputs if name}
        data = {name: self._small[name] for name in inputs if name in self._small}
        schema = get_schema(op_type, OPSET)
        opsets = [helper.make_opsetid("", OPSET)]
        self._types.update(infer_node_outputs(schema, node, types, data, opset_imports=opsets, ir_version=IR_VERSION))
        return names

    def reshape(self, x: str, *shape: int) -> str:
        """Add a Reshape to a constant shape."""
        return self.add("Reshape", x, self.ints(*shape), allowzero=0)

    def transpose(self, x: str, *perm: int) -> str:
        """Add a Transpose by `perm`, and return its output."""
        return self.add("Transpose", x, perm=perm)

    def linear(self, x: str, columns: int, gain: float = 1.0) -> str:
        """Add x @ W + b as exporters write it for more than two axes: MatMul, then Add with the bias second."""
        return self.add("Add", self.projection(x, columns, gain), self.bias(columns))

    def projection(self, x: str, columns: int, gain: float = 1.0) -> str:
        """Add x @ W with random weights [k, columns], scaled to keep the variance times `gain` squared."""
        rows = self.shape(x)[-1]
        return self.add("MatMul", x, self.weight(rows, columns, fan_in=rows, gain=gain))

    def gemm(self, x: str, columns: int, gain: float = 1.0, transposed: bool = True) -> str:
        """Add x @ W + b for two axes, with W stored as [columns, rows] unless not `transposed`."""
        rows = self.shape(x)[1]
        shape = (columns, rows) if transposed else (rows, columns)
        weight = self.weight(*shape, fan_in=rows, gain=gain)
        return self.add("Gemm", x, weight, self.bias(columns), alpha=1.0, beta=1.0, transA=0, transB=int(transposed))

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int = 1,
        *,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        dilation: int = 1,
        gain: float = 1.0,
    ) -> str:
        """Add a Conv with bias; `padding` of None keeps the size at a stride of 1."""
        _, depth, *spatial = self.shape(x)
        axes = len(spatial)
        around = dilation * (kernel - 1) // 2 if padding is None else padding
        window = [kernel] * axes
        fan_in = depth // groups * kernel**axes
        weight = self.weight(channels, depth // groups, *window, fan_in=fan_in, gain=gain)
        return self.add(
            "Conv", x, weight, self.bias(channels), kernel_shape=window, strides=[stride] * axes, group=groups,
            pads=[around] * (2 * axes), dilations=[dilation] * axes, auto_pad="NOTSET",
        )  # fmt: skip

    def layer_norm(self, x: str, epsilon: float = 1e-5) -> str:
        """Add a LayerNormalization of the last axis."""
        length = self.shape(x)[-1]
        scale = self.constant(self.uniform((length,), 0.1) + np.float32(1))
        return self.add("LayerNormalization", x, scale, self.bias(length), axis=-1, epsilon=epsilon, stash_type=1)

    def silu(self, x: str) -> str:
        """Add x * Sigmoid(x), which exporters write as two nodes."""
        return self.add("Mul", x, self.add("Sigmoid", x))

    def relu(self, x: str) -> str:
        """Add a Relu, and return its output."""
        return self.add("Relu", x)

    def gelu(self, x: str) -> str:
        """Add a Gelu computed by erf, not by tanh, and return its output."""
        return self.add("Gelu", x, approximate="none")

    def max_pool(self, x: str, kernel: int, stride: int, padding: int = 0, ceil: bool = False) -> str:
        """Add a two-dimensional MaxPool with square windows."""
        return self.add(
            "MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4, dilations=[1, 1],
            ceil_mode=int(ceil), storage_order=0, auto_pad="NOTSET",
        )  # fmt: skip

    def global_pool(self, x: str) -> str:
        """Add the mean of each channel, as [N, C]."""
        pooled = self.add("ReduceMean", x, self.ints(-1, -2), keepdims=1, noop_with_empty_axes=0)
        return self.reshape(pooled, *self.shape(x)[:2])

    # -- the model ------------------------------------------------------------------------------------------

    def finish(self, *outputs: str) -> SeededNetwork:
        """Make the model with these outputs."""
        made = [name for node in self._nodes for name in node.output]
        described = [self._info(name) for name in made if name not in outputs]
        graph = helper.make_graph(
            self._nodes, self._name, [self._info(name) for name in self._inputs],
            [self._info(name) for name in outputs], self._initializers, value_info=described,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        return SeededNetwork(model, dict(self._inputs))

    def _add_input(self, name: str, values: Array) -> str:
        self._inputs[name] = values
        element_type = helper.np_dtype_to_tensor_dtype(values.dtype)
        self._types[name] = helper.make_tensor_type_proto(element_type, values.shape)
        return name

    def _info(self, name: str) -> ValueInfoProto:
        return helper.make_value_info(name, self._types[name])
