"""The compression of the matrices of experts: of `engine.ExpertMatMul` with weights that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from engine.ir import Constant, ElementType, Model, Node
from engine.ops.internal import INTERNAL_DOMAIN, ExpertMatMul, ExpertMatMulSpec
from engine.ops.tensors import Array
from engine.passes.block_search import BlockCodes, search_blocks
from engine.passes.runtime_info import copy_runtime_info
from engine.startup import dataclass

_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """A constant [experts, rows, columns] of real numbers, and the products that read it.

    Attributes:
        has_other_readers: whether another node reads the constant, which therefore stays in the model.
    """

    constant: Constant
    nodes: tuple[Node, ...]
    has_other_readers: bool


def expert_matrices(model: Model) -> list[ExpertMatrices]:
    """Those of a model and of the bodies in it, in the order in which their nodes run."""
    found: dict[Constant, list[Node]] = {}
    _collect(model, found)
    made = []
    for constant, nodes in found.items():
        readers = {reader.node for reader in constant.output(0).target_inputs}
        made.append(ExpertMatrices(constant, tuple(nodes), bool(readers - set(nodes))))
    return made


def _collect(model: Model, found: dict[Constant, list[Node]]) -> None:
    for node in model.ordered_nodes():
        for body in node.bodies.values():
            _collect(body, found)
        if node.op_type != "ExpertMatMul" or node.domain != INTERNAL_DOMAIN:
            continue
        spec = ExpertMatMulSpec.of(node)
        if not spec.bits and isinstance(spec.weights.node, Constant):
            found.setdefault(spec.weights.node, []).append(node)


def search_experts(data: Array, element_type: ElementType, block: int) -> BlockCodes:
    """The codes and scales of all experts' matrices: as one of [columns, experts * rows]."""
    matrix = data.reshape(-1, data.shape[2]).T
    return search_blocks(matrix, element_type, block, data.dtype, symmetric=element_type.is_signed)


def replace_experts(found: ExpertMatrices, codes: BlockCodes, element_type: ElementType, block: int) -> None:
    """Have the products of `found` read codes."""
    experts, rows, columns = found.constant.shape
    bits = element_type.bits
    # Codes are unsigned: the zero point of signed ones is the middle of the range.
    offset = 1 << (bits - 1) if element_type.is_signed else 0

    def by_expert(array: Array) -> Array:
        return np.ascontiguousarray(array.T).reshape(experts, rows, -1)

    def packed(array: Array) -> Constant:
        return Constant(_in_bytes(by_expert(array).astype(np.int16) + offset, bits))

    weights, scale = packed(codes.codes), Constant(by_expert(codes.scales))
    zero_point = None if codes.zero_points is None else packed(codes.zero_points)
    if found.constant.has_own_name:
        for operand, what in ((weights, "codes"), (scale, "scale"), (zero_point, "zero_point")):
            if operand is not None:
                operand.friendly_name = f"{found.constant.friendly_name}.{what}"
    for node in found.nodes:
        spec = ExpertMatMulSpec.of(node)
        made = ExpertMatMul(
            spec.x, spec.experts, weights, scale, zero_point, spec.bias, bits=bits, block_size=min(block, columns)
        )
        made.friendly_name = node.friendly_name
        copy_runtime_info([node], made)
        node.output(0).replace(made.output(0))


def why_not_packable(shape: Sequence[int], element_type: ElementType) -> str | None:
    """Why rows of codes of a type would not fill bytes; None if they do."""
    if shape[2] * element_type.bits % _BYTE:
        return f"it has rows of {shape[2]}; expected an even number, as codes of 4 bits are stored in pairs"
    return None


def _in_bytes(codes: Array, bits: int) -> Array:
    """[..., n] codes in bytes along the last axis, the first in the low bits; the last byte is filled with zeros."""
    values = codes.astype(np.uint8)
    if bits == _BYTE:
        return values
    padded = np.pad(values, [(0, 0), (0, 0), (0, values.shape[-1] % 2)])
    found: Array = padded[..., ::2] | padded[..., 1::2] << np.uint8(4)
    return found
