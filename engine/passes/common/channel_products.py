"""Linear operators over channels: 1x1 convolutions and products with a constant matrix, read, rebuilt and priced."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, bf16, f16, f32, f64
from engine.ops.conv import ConvSpec
from engine.ops.matmul import GemmSpec
from engine.ops.tensors import Array
from engine.passes.common.ranges import fits, magnitudes
from engine.passes.fusion import as_vector, derived_constant, dims_of
from engine.startup import dataclass

PRODUCTS: Final = ("Add", "Conv", "Gemm", "MatMul")
"""The operators whose results `ChannelProduct.of` reads."""
BYTE_COST: Final = 8
"""The multiply-adds of a product that take as long as moving one byte of a tensor too large for the near caches.

The core of a server's CPU reaches 100e9 multiply-adds and 10e9 to 30e9 bytes per second, a GPU 30e12 and 5e12.
"""
_FLOATS: Final = frozenset({f32, f16, bf16, f64})
_GEMM_RANK: Final = 2
_MAP_RANKS: Final = (3, 4)
"""The ranks of maps for which devices have convolutions."""


@dataclass(frozen=True, slots=True)
class ChannelProduct:
    """y[.., m, ..] = sum over c of matrix[m, c] * x[.., c, ..] + bias[m].

    Attributes:
        nodes: its nodes; the last one gives the result.
        x: its input, not a constant.
        weights: the matrix as the first node reads it.
        columns_first: whether `weights` are stored [inputs, outputs].
        bias: [outputs].
        axis: the axis of the channels, in the input and the result.
    """

    nodes: tuple[Node, ...]
    x: Output
    weights: Constant
    columns_first: bool
    bias: Constant | None
    axis: int

    @classmethod
    def of(cls, node: Node) -> ChannelProduct | None:
        """The product that ends in `node`; None if there is none, or if `node` is only a part of one."""
        if node.domain or node.op_type not in PRODUCTS:
            return None
        if node.op_type == "Add":
            return _with_bias(node)
        product = _read(node)
        if product is None or node.op_type != "MatMul":
            return product
        readers = node.output(0).target_inputs
        is_part = len(readers) == 1 and readers[0].node.op_type == "Add" and _with_bias(readers[0].node) is not None
        return None if is_part else product

    @property
    def inputs(self) -> int:
        """The number of input channels, from the shape of the weights."""
        return self.weights.shape[0 if self.columns_first else 1]

    @property
    def outputs(self) -> int:
        """The number of channels of the result."""
        return self.weights.shape[1 if self.columns_first else 0]

    @property
    def is_convolution(self) -> bool:
        """Whether it is a Conv, whose channels are axis 1; otherwise, they are the last axis."""
        return self.nodes[0].op_type == "Conv"

    @property
    def item(self) -> int:
        """The size of an element in bytes."""
        return self.weights.element_type.byte_size(1)

    @property
    def positions(self) -> int:
        """The number of positions of the input; unknown lengths count as 1."""
        return positions_of(self.x, self.axis)

    def cost(self, positions: int) -> float:
        """The cost over a number of positions."""
        return product_cost(positions, self.inputs, self.outputs, self.item)

    def on(self, x: Output) -> list[Node]:
        """The same product of another tensor; if it is a convolution, of one of the same rank."""
        if self.nodes[0].op_type == "Gemm" and len(dims_of(x) or ()) != _GEMM_RANK:
            return self.with_matrix(x, self.matrix(), self.bias)
        made = [self.nodes[0].clone_with_new_inputs([x, *self.nodes[0].input_values[1:]])]
        if len(self.nodes) > 1:
            made.append(ops.Add(made[0], self.bias))
        return made

    def with_matrix(self, x: Output, matrix: Constant, bias: Constant | None) -> list[Node]:
        """A product of the same kind with another matrix, [outputs, any], and another bias."""
        outputs, inputs = matrix.shape
        if self.is_convolution:
            shape = (outputs, inputs, *self.weights.shape[2:])
            kernel = derived_constant([matrix], shape, lambda data: data.reshape(shape))
            return [ops.create("Conv", [x, kernel, bias], self.nodes[0].attributes)]
        table = derived_constant([matrix], (inputs, outputs), lambda data: np.ascontiguousarray(data.T))
        made: list[Node] = [ops.MatMul(x, table)]
        return made if bias is None else [*made, ops.Add(made[0], bias)]

    def matrix(self, *ranges: tuple[int, int]) -> Constant:
        """The matrix, [outputs, inputs], or only the given ranges of its columns: first and count."""
        kept = ranges or ((0, self.inputs),)
        columns_first, shape = self.columns_first, (self.outputs, self.inputs)

        def columns(data: Array) -> Array:
            whole = data.T if columns_first else data.reshape(shape)
            return np.concatenate([whole[:, first : first + count] for first, count in kept], axis=1)

        return derived_constant([self.weights], (self.outputs, sum(count for _, count in kept)), columns)

    def magnitudes(self, *, by_output: bool) -> Array:
        """The largest magnitudes in the matrix, of each output or of each input."""
        shape = (self.inputs, self.outputs) if self.columns_first else (self.outputs, self.inputs)
        return magnitudes(self.weights, shape, (int(self.columns_first != by_output),))

    def fits_after(self, inner: ChannelProduct) -> bool:
        """Whether the matrix and bias of `after` neither overflow nor lose digits as denormal numbers."""
        root = math.sqrt(self.inputs)
        left, right = (root * product.magnitudes(by_output=product is self) for product in (self, inner))
        element_type = self.weights.element_type
        with np.errstate(over="ignore", invalid="ignore"):
            products = [left * right.max(), right * left.max()]
            if inner.bias is not None:
                products.append(left * np.abs(inner.bias.data.astype(np.float64)).max() * root)
            return all(fits(element_type, largest) for largest in products)

    def after(self, inner: ChannelProduct) -> tuple[Constant, Constant | None]:
        """The matrix and bias of this product of the result of `inner`: computed in double precision, rounded once."""
        left, right = self.matrix(), inner.matrix()
        matrix = derived_constant([left, right], (self.outputs, inner.inputs), _product)
        if _multiplies(left) or _multiplies(right):
            # The next merge reads it, and so on: if each computed it again, a chain would take quadratic time.
            matrix = Constant(matrix.data)
        if inner.bias is None:
            return matrix, self.bias
        moved = left.data.astype(np.float64) @ inner.bias.data.astype(np.float64)
        if self.bias is not None:
            moved += self.bias.data.astype(np.float64)
        return matrix, Constant(moved.astype(left.element_type.numpy))


def product_cost(positions: int, inputs: int, outputs: int, item: int) -> float:
    """The cost of the product of [positions, inputs] and [inputs, outputs], in multiply-adds; `item`: in bytes."""
    moved = positions * (inputs + outputs) + inputs * outputs
    return positions * inputs * outputs + BYTE_COST * item * moved


def positions_of(value: Output, axis: int) -> int:
    """The number of positions of a tensor of known rank with channels at `axis`; unknown lengths count as 1."""
    dims = dims_of(value)
    assert dims is not None
    return math.prod(dim.get_length() for index, dim in enumerate(dims) if index != axis and dim.is_static)


def _product(a: Array, b: Array) -> Array:
    result: Array = (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)
    return result


def _multiplies(matrix: Constant) -> bool:
    """Whether reading a matrix computes the product of two others."""
    seen: set[Constant] = set()
    stack = [matrix]
    while stack:
        constant = stack.pop()
        if constant.derivation is _product:
            return True
        if constant not in seen:
            seen.add(constant)
            stack += constant.bases
    return False


def _read(node: Node) -> ChannelProduct | None:
    """The product that one of the nodes in `_READERS` computes."""
    x, weights = node.input_value(0), node.input_value(1).node
    bias = node.input_value(2).node if node.has_input(2) else None
    dims = dims_of(x)
    if dims is None or isinstance(x.node, Constant) or not isinstance(weights, Constant):
        return None
    if weights.element_type not in _FLOATS or 0 in weights.shape or not isinstance(bias, Constant | None):
        return None
    columns_first = _READERS[node.op_type](node, weights, len(dims))
    if columns_first is None:
        return None
    axis = 1 if node.op_type == "Conv" else len(dims) - 1
    product = ChannelProduct((node,), x, weights, columns_first, bias, axis)
    return product if bias is None or bias.shape == (product.outputs,) else None


def _with_bias(node: Node) -> ChannelProduct | None:
    """The product of Add(MatMul(x, w), b), in either order."""
    for index in (0, 1):
        source = node.input_value(index)
        if source.node.op_type != "MatMul" or source.node.domain or source.num_consumers != 1:
            continue
        product, dims = _read(source.node), dims_of(node.output(0))
        if product is None or dims is None or len(dims) != product.axis + 1:
            continue
        bias = as_vector(node.input_value(1 - index), dims[-1:])
        if bias is not None and isinstance(bias.node, Constant) and bias.node.shape == (product.outputs,):
            return replace(product, nodes=(*product.nodes, node), bias=bias.node)
    return None


def _read_convolution(node: Node, weights: Constant, rank: int) -> bool | None:
    """False, since the outputs are first, for a convolution that computes each position from that position alone."""
    if rank not in _MAP_RANKS or any(size != 1 for size in weights.shape[2:]):
        return None
    spec = ConvSpec.of(node)
    if spec.group != 1 or any(step != 1 for step in spec.strides) or any(spec.pads or ()):
        return None  # a window of 1 without strides needs no padding for SAME
    return False


def _read_matmul(node: Node, weights: Constant, rank: int) -> bool | None:
    return True if len(weights.shape) == 2 and rank > 1 else None


def _read_gemm(node: Node, weights: Constant, rank: int) -> bool | None:
    spec = GemmSpec.of(node)
    return None if spec.alpha != 1 or spec.beta != 1 or spec.transA else not spec.transB


_READERS: Final = {"Conv": _read_convolution, "MatMul": _read_matmul, "Gemm": _read_gemm}
"""Whether the weights are stored [inputs, outputs]; None if the node is not a product over the channels alone."""
