"""`MatMulNBits`: the product with a matrix whose elements are packed, with a scale for each block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from engine.ir import Constant, ElementType, Output, PartialShape, TensorType, f32, f64, i8, i32, u8
from engine.ir.element_type import i2, i4
from engine.onnx.annotations import ACCURACY_LEVEL
from engine.onnx.contrib.call import ContribCall, contrib
from engine.onnx.contrib.packed_elements import (
    REALS,
    UNSIGNED,
    Array,
    bits_of,
    block_size_of,
    constant_of,
    expect_shape,
    is_constant,
    same_type,
    unpacked,
)
from engine.onnx.upgrades.emit import cast, emit, i64s, rank_of
from engine.ops.packed_columns import PackedColumns
from engine.startup import dataclass

_SIGNED: Final = {2: i2, 4: i4, 8: i8}
_LEVELS: Final = 4


@contrib(
    "MatMulNBits",
    "A B scales zero_points? g_idx? bias?",
    "K N accuracy_level bits block_size weight_prepacked",
)
def _matmul_n_bits(call: ContribCall) -> list[Output] | None:
    """A times the dequantized B; None if B or its parameters are computed."""
    if any(call.has_input(index) and not is_constant(call.input(index)) for index in (1, 2, 3, 4)):
        return None
    x, packed = call.typed(0, REALS), _PackedMatrix.of(call)
    level = call.integer("accuracy_level", 0)
    if not 0 <= level <= _LEVELS:
        call.invalid(f"attribute `accuracy_level` is {level}; expected 0..{_LEVELS}")
    value = _product(x, packed, level)
    if not call.has_input(5):
        return [value]
    expect_shape(call, 5, (packed.columns,))
    return [emit("Add", value, call.typed(5, same_type(call)))]


@dataclass(frozen=True, slots=True)
class _PackedMatrix:
    """B of a MatMulNBits, [N, blocks, bytes], and the meaning of its elements. Constants are unpacked when they are
    read.

    Attributes:
        scales: [blocks, N].
        zero_points: [blocks, N] of an unsigned type; None for the middle of the range.
        offsets: zero points less the middle of the range, [blocks, N], if they are not codes; f64.
        order: the permutation of the rows, and of the columns of A, that puts those with the same scale together.
        block_size: the number of rows that share a scale, once they are together.
    """

    codes: Constant
    scales: Constant
    zero_points: Constant | None
    offsets: Array | None
    order: Array | None
    rows: int
    columns: int
    bits: int
    block_size: int

    @classmethod
    def of(cls, call: ContribCall) -> _PackedMatrix:
        """The operands of a call. Raises `ModelError` and `UnsupportedError`."""
        bits, block = bits_of(call), block_size_of(call)
        rows, columns = call.integer("K"), call.integer("N")
        for name, length in (("K", rows), ("N", columns)):
            if length < 1:
                call.invalid(f"attribute `{name}` is {length}; expected 1 or more")
        if call.integer("weight_prepacked", 0):
            call.unsupported(
                f"attribute `weight_prepacked` is {call.integer('weight_prepacked')}: the weights have a layout for "
                "one kind of GPU",
                "write the model without prepacked weights",
            )
        blocks = -(-rows // block)
        call.typed(1, {u8})
        expect_shape(call, 1, (columns, blocks, block * bits // 8))
        call.typed(2, same_type(call))
        expect_shape(call, 2, (columns, blocks), (columns * blocks,))
        groups = _groups(call, rows, block, blocks)
        order = None if groups is None else np.argsort(groups, kind="stable")
        if groups is None or (order is not None and np.array_equal(groups[order], np.arange(rows) // block)):
            groups = None
        else:  # blocks of different sizes: each row has its own scale
            order, block = None, 1

        def parameter(stored: Constant, element_type: ElementType, unpack: Callable[[Array], Array]) -> Constant:
            def read(data: Array) -> Array:
                found = unpack(data).reshape(columns, -1)[:, :blocks].T
                return np.ascontiguousarray(found if groups is None else found[groups]).astype(element_type.numpy)

            shape = PartialShape([blocks if groups is None else rows, columns])
            return Constant.derived([stored], TensorType(element_type, shape), read)

        scales = constant_of(call.input(2))
        scales = parameter(scales, scales.element_type, lambda data: data)
        zero_points, offsets = _zero_points(call, bits, columns, blocks), None
        if zero_points is not None and zero_points.element_type is u8:
            zero_points = parameter(zero_points, UNSIGNED[bits], lambda data: unpacked(data.reshape(columns, -1), bits))
        elif zero_points is not None:
            offsets = parameter(zero_points, f64, lambda data: data).data - (1 << (bits - 1))
            whole = offsets + (1 << (bits - 1))
            codes = np.clip(np.nan_to_num(whole), 0, (1 << bits) - 1).astype(UNSIGNED[bits].numpy)
            zero_points = None
            if np.array_equal(codes.astype(np.float64), whole):
                zero_points, offsets = Constant(codes) if offsets.any() else None, None
        return cls(constant_of(call.input(1)), scales, zero_points, offsets, order, rows, columns, bits, block)

    def dequantized(self, real: ElementType) -> Output:
        """The matrix [K, N] in the type `real`, less the `offsets`."""
        scales = self.scales.output(0)
        parameters = [scales if scales.element_type is real else cast(scales, real)]
        if self.zero_points is not None:
            parameters.append(self.zero_points.output(0))
        codes = self._codes((_SIGNED if self.zero_points is None else UNSIGNED)[self.bits]).output(0)
        return emit("DequantizeLinear", codes, *parameters, axis=0, block_size=self.block_size)

    def _codes(self, element_type: ElementType) -> Constant:
        """The elements [K, N] as they are stored, or less the middle for a signed type."""
        unpack, order = PackedColumns(self.bits, self.rows, element_type), self.order
        value_type = TensorType(element_type, PartialShape([self.rows, self.columns]))
        if order is None:
            return Constant.derived([self.codes], value_type, unpack)
        return Constant.derived([self.codes], value_type, lambda data: unpack(data)[order])


def _product(x: Output, packed: _PackedMatrix, level: int) -> Output:
    real = x.element_type if x.element_type in REALS else packed.scales.element_type
    if packed.order is not None:
        x = emit("Gather", x, i64s(packed.order.tolist()), axis=-1)
    if packed.offsets is None:
        return _leveled(emit("MatMul", x, packed.dequantized(real)), level)
    # x (codes - zero) scale = x (codes - middle) scale - x (zero - middle) scale, where the last product needs only the
    # sums of x in each block. In f32, because the two may be larger than their difference.
    wide = x if x.element_type is f32 else cast(x, f32)
    value = emit("Sub", _leveled(emit("MatMul", wide, packed.dequantized(f32)), level), _offsets(wide, packed))
    return value if real is f32 else cast(value, real)


def _offsets(x: Output, packed: _PackedMatrix) -> Output:
    """The product of x with a matrix whose blocks are the offsets times the scales."""
    assert packed.offsets is not None
    block, offsets = packed.block_size, packed.offsets * packed.scales.data.astype(np.float64)
    packed.scales.release()
    rank = rank_of(x)
    if rank is None or packed.rows % block:
        sums, offsets = x, np.repeat(offsets, block, axis=0)[: packed.rows]
    else:
        split = emit("Reshape", x, i64s([*[0] * (rank - 1), packed.rows // block, block]))
        sums = emit("ReduceSum", split, i64s([-1]), keepdims=0)
    return emit("MatMul", sums, Constant(np.ascontiguousarray(offsets.astype(np.float32))).output(0))


def _leveled(product: Output, level: int) -> Output:
    if level:
        product.node.rt_info[ACCURACY_LEVEL] = level
    return product


def _zero_points(call: ContribCall, bits: int, columns: int, blocks: int) -> Constant | None:
    """Input 3; None if it is omitted, or has codes that are all the middle of the range."""
    if not call.has_input(3):
        return None
    given = constant_of(call.typed(3, {u8, *same_type(call)}))
    if given.element_type is not u8:
        expect_shape(call, 3, (columns, blocks), (columns * blocks,))
        return given
    width = -(-blocks * bits // 8)
    expect_shape(call, 3, (columns, width), (columns * width,))
    codes = unpacked(given.data.reshape(columns, width), bits)[:, :blocks]
    given.release()
    return None if (codes == 1 << (bits - 1)).all() else given


def _groups(call: ContribCall, rows: int, block: int, blocks: int) -> Array | None:
    """Input 4: the block whose scale belongs to each row; None for the usual one.

    onnxruntime does not use zero points of u8 together with this input; they are used here, as documented.
    """
    if not call.has_input(4):
        return None
    call.typed(4, {i32})
    expect_shape(call, 4, (rows,))
    groups = constant_of(call.input(4)).data
    wrong = np.flatnonzero((groups < 0) | (groups >= blocks))
    if wrong.size:
        index = int(wrong[0])
        call.invalid(f"{call.described(4)} has {groups[index]} at index {index}; expected 0..{blocks - 1}")
    return None if np.array_equal(groups, np.arange(rows) // block) else groups
