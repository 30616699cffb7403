"""The linear layers of a model: products with constant matrices, and the modules of the checkpoint they came from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from engine.ir import Constant, Model, Node, Output
from engine.ops.gather import GatherSpec
from engine.ops.matmul import GemmSpec
from engine.passes.fusion import as_vector, operation
from engine.startup import dataclass

_MATRIX: Final = 2
_PASSING: Final = ("Transpose", "Cast", "CastLike", "Identity", "DequantizeLinear")
"""Operators that may stand between the constants of a matrix and its product."""
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
"""Key of the metadata in which torch's exporter lists the modules around a node, the outermost first, then the node."""
_PRODUCT: Final = re.compile(r"(MatMul|Gemm)(NBits)?(_\w+)?")
"""The last component of a product's name, behind those of its module."""
_PACKED: Final = "qkv_proj"
_PARTS: Final = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """One linear layer, or a part of one that onnxruntime-genai's builder packed.

    Attributes:
        path: the module's path, such as `model.layers.0.self_attn.q_proj`; the product's name if it is unknown.
        product: the product.
        x: what the layer reads, [..., rows].
        y: what it gives, [..., columns], its bias included.
        rows, columns: of its matrix.
    """

    path: str
    product: Node
    x: Output
    y: Output
    rows: int
    columns: int

    @property
    def gives_output(self) -> bool:
        """Whether its result is an output of the model, such as the logits."""
        return any(target.node.op_type == "Result" for target in self.y.target_inputs)


def linear_layers(model: Model, names: Mapping[str, str]) -> list[LinearLayer]:
    """The linear layers in the order in which they run, without those in bodies.

    `names` gives the paths of products by their friendly names. A module that is called twice occurs twice; products
    of different matrices in one module are not a linear layer of this name, and have their own.
    """
    found = [layer for node in model.ordered_nodes() if (layer := _layer(node, names)) is not None]
    compressed = {layer.path for layer in found if _is_compressed(layer)}
    # Zero points that are not integers make a second product, of the sums of each block.
    found = [layer for layer in found if layer.path not in compressed or _is_compressed(layer)]
    matrices: dict[str, set[Constant | None]] = {}
    for layer in found:
        matrices.setdefault(layer.path, set()).add(_constant(layer.product.input_value(1)))
    return [each if len(matrices[each.path]) == 1 else _named_by_product(each) for each in found]


def _named_by_product(layer: LinearLayer) -> LinearLayer:
    return replace(layer, path=layer.product.friendly_name)


def parts_of(layer: LinearLayer) -> list[LinearLayer]:
    """The projections of queries, keys and values that a packed layer joins; empty for others."""
    before, _, last = layer.path.rpartition(".")
    targets = layer.y.target_inputs
    split = targets[0].node if len(targets) == 1 else None
    if last != _PACKED or split is None or split.op_type != "Split" or split.domain or split.num_outputs != len(_PARTS):
        return []
    rank, made = len(layer.y.shape), []
    if int(split.attributes.get("axis", 0)) % rank != rank - 1:
        return []
    for part, y in zip(_PARTS, split.outputs, strict=True):
        width = y.shape[-1]
        if width.is_dynamic:
            return []
        path = f"{before}.{part}" if before else part
        made.append(LinearLayer(path, layer.product, layer.x, y, layer.rows, width.get_length()))
    return made


def _is_compressed(layer: LinearLayer) -> bool:
    return operation(layer.product.input_value(1), "DequantizeLinear") is not None


def _layer(node: Node, names: Mapping[str, str]) -> LinearLayer | None:
    if node.op_type not in ("MatMul", "Gemm") or node.domain:
        return None
    x, matrix, y = node.input_value(0), node.input_value(1), node.output(0)
    weights = _constant(matrix)
    if weights is None or not matrix.shape.is_static or len(matrix.shape) != _MATRIX or not x.element_type.is_real:
        return None
    if x.shape.rank.is_dynamic or len(x.shape) < _MATRIX or isinstance(x.node, Constant):
        return None
    rows, columns = matrix.shape.get_shape()
    if node.op_type == "Gemm":
        spec = GemmSpec.of(node)
        if spec.transA or spec.alpha != 1:
            return None
        if spec.transB:
            rows, columns = columns, rows
    path = names.get(node.friendly_name) or _path(node, weights)
    return LinearLayer(path, node, _unordered(x, node), _with_bias(y), rows, columns)


def _constant(value: Output) -> Constant | None:
    """The constant that a matrix is computed from."""
    node = value.node
    while node.op_type in _PASSING and not node.domain:
        if not all(isinstance(each.node, Constant) for each in node.input_values[1:] if each is not None):
            return None
        node = node.input_value(0).node
    return node if isinstance(node, Constant) else None


def _unordered(x: Output, product: Node) -> Output:
    """The operand of a layer whose import permutes its rows, as MatMulNBits with `g_idx` does."""
    order = operation(x, "Gather")
    if order is None or not order.friendly_name.startswith(f"{product.friendly_name.removesuffix('/MatMul')}/"):
        return x
    is_last = GatherSpec.of(order).axis in (-1, len(x.shape) - 1)
    return order.input_value(0) if is_last and isinstance(order.input_value(1).node, Constant) else x


def _with_bias(y: Output) -> Output:
    """The sum of a product with its bias, if it is all that reads the product."""
    readers = y.target_inputs
    if len(readers) != 1 or readers[0].node.op_type != "Add" or readers[0].node.domain:
        return y
    add, other = readers[0].node, readers[0].node.input_value(1 - readers[0].index)
    bias = as_vector(other, y.shape.dims[-1:]) if isinstance(other.node, Constant) else None
    return add.output(0) if bias is not None and len(add.output(0).shape) == len(y.shape) else y


def _path(node: Node, weights: Constant) -> str:
    return next(_paths(node, weights), node.friendly_name)


def _paths(node: Node, weights: Constant) -> Iterator[str]:
    """What the file says about the module of a product, the most reliable first."""
    if scope := _scope(node.annotations.get("metadata")):
        yield scope
    if weights.has_own_name and weights.friendly_name.endswith(".weight"):
        parts = weights.friendly_name.removesuffix(".weight").split(".")
        if path := ".".join(_without_product(parts)):
            yield path
    if "/" in node.friendly_name:
        parts = [part for part in node.friendly_name.split("/") if part]
        if parts and _PRODUCT.fullmatch(parts[-1]) and (path := ".".join(_without_product(parts))):
            yield path


def _scope(metadata: Any) -> str:
    text = metadata.get(_SCOPES) if isinstance(metadata, dict) else None
    try:
        scopes = ast.literal_eval(text) if isinstance(text, str) else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    if not isinstance(scopes, list) or len(scopes) < 2 or not all(isinstance(scope, str) for scope in scopes):
        return ""
    return str(scopes[-2])


def _without_product(parts: list[str]) -> list[str]:
    while parts and _PRODUCT.fullmatch(parts[-1]):
        parts = parts[:-1]
    return parts
