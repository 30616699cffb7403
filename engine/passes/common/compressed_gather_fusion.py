"""`CompressedGatherFusion`: look-ups in a constant table of 2, 4 or 8-bit integers become one operator."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import Constant, Node, f32, i8, i32, i64, u8
from engine.ir.element_type import i2, i4, u2, u4
from engine.ops.gather import GatherSpec
from engine.ops.internal import CompressedGather
from engine.ops.quantize import QuantizeSpec
from engine.ops.tensors import Array
from engine.passes.fusion import derived_constant, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass

_CODES: Final = (i2, u2, i4, u4, i8, u8)
_MATRIX: Final = 2


class CompressedGatherFusion(MatcherPass):
    """Makes `engine.CompressedGather` of a Gather of rows from a DequantizeLinear of constants.

    The table is a matrix of integers with one scale for all, for each row, or for each block of a row. Only the rows
    that are looked up are then dequantized, and the table keeps its size.
    """

    makes = frozenset({"engine.CompressedGather"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("Gather"), "CompressedGatherFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        found = None if self.transformation_callback(node) else _table(node)
        if found is None:
            return False
        source, data, scale, zero_point, block_size = found
        shape = (data.shape[0], -(-data.shape[1] // block_size))
        fitted = _fitted(scale, shape)
        zero_points = None if zero_point is None else _fitted(zero_point, shape)
        made = CompressedGather(data, node.input_value(1), fitted, zero_points, block_size=block_size)
        return replace_by(node, [source, node], [made])


def is_looked_up(source: Node) -> bool:
    """Whether a DequantizeLinear is read by a Gather that the pass replaces: it is not to be folded before."""
    return any(target.node.op_type == "Gather" and _table(target.node) for target in source.output(0).target_inputs)


def _table(node: Node) -> tuple[Node, Constant, Constant, Constant | None, int] | None:
    """The DequantizeLinear of a Gather's table, its operands, and the number of elements that share a scale."""
    source = operation(node.input_value(0), "DequantizeLinear")
    if source is None or node.output(0).element_type is not f32 or GatherSpec.of(node).axis != 0:
        return None
    data, scale = source.input_value(0).node, source.input_value(1).node
    zero_point = source.input_value(2).node if source.has_input(2) else None
    if not isinstance(data, Constant) or not isinstance(scale, Constant) or not isinstance(zero_point, Constant | None):
        return None
    if len(data.shape) != _MATRIX or 0 in data.shape or data.element_type not in _CODES:
        return None
    if scale.element_type is not f32 or node.input_value(1).element_type not in (i32, i64):
        return None
    block_size = _block_size(QuantizeSpec.of(source), data, scale)
    return (source, data, scale, zero_point, block_size) if block_size else None


def _block_size(spec: QuantizeSpec, data: Constant, scale: Constant) -> int:
    """The number of elements of a row that share a scale; 0 if scales are arranged in another way."""
    rows, columns = data.shape
    if scale.data.size == 1 or (not spec.block_size and spec.axis == 0 and scale.shape == (rows,)):
        return columns
    return spec.block_size if spec.axis == 1 else 0


def _fitted(parameter: Constant, shape: tuple[int, int]) -> Constant:
    """A scale or zero point as [rows, blocks]: given as one number, one for each row, or a matrix."""
    if parameter.shape == shape:
        return parameter

    def fitted(numbers: Array) -> Array:
        column = numbers.reshape(-1, 1) if numbers.size in (1, shape[0]) and shape[1] == 1 else numbers.reshape(1, 1)
        return np.ascontiguousarray(np.broadcast_to(column, shape))

    return derived_constant([parameter], shape, fitted)
