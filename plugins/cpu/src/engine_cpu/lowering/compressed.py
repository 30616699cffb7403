"""CompressedMatMul and CompressedGather, by kernels that read weights of 4 and 8 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.ir import Constant, Output
from engine.ir.element_type import i2, i8, u8
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.native import Attribute, pack
from engine.ops.internal import INTERNAL_DOMAIN, CompressedGatherSpec, CompressedMatMulSpec
from engine.ops.packed_columns import JoinedColumns, PackedColumns
from engine.startup import dataclass
from engine_cpu.layout import item_size
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder
from engine_cpu.weights import WeightStore

Array = np.ndarray[Any, np.dtype[Any]]

_INT8_ACTIVATIONS: Final = 4
"""The accuracy level from which activations may be rounded to 8 bits."""


@lowers("CompressedMatMul", domain=INTERNAL_DOMAIN, spec=CompressedMatMulSpec)
class CompressedMatMulLowering(OpLowering[CompressedMatMulSpec]):
    """Products of rows with one constant matrix, whose blocks have a scale each, with the epilogue of FusedMatMul."""

    def check(self, spec: CompressedMatMulSpec) -> Refusal | None:
        constants = _check_constants(spec.weights, spec.scale, spec.zero_point)
        return first_refusal(check_types([spec.x, spec.output()], F32), constants)

    def pack(self, spec: CompressedMatMulSpec, weights: WeightStore, precision: str) -> Sequence[Output]:
        codes = _Codes(spec.weights, spec.scale, spec.zero_point, weights)
        codes.stored(codes.operands, _recipe(spec), lambda: _packed(spec, codes))
        return codes.operands

    def lower(self, spec: CompressedMatMulSpec, b: SegmentBuilder) -> None:
        codes = _Codes(spec.weights, spec.scale, spec.zero_point, b.store)
        inputs = [b.input(spec.x), b.weights(codes.operands, _recipe(spec), lambda: _packed(spec, codes))]
        attributes = _form(spec, codes)
        attributes |= {"m": math.prod(b.shape(spec.x)[:-1]), **activation_attributes(spec.activation)}
        for name, value in (("bias", spec.bias), ("residual", spec.residual)):
            attributes[name] = int(value is not None)
            if value is not None:
                inputs.append(b.input(value))
        if spec.accuracy_level == _INT8_ACTIVATIONS:
            attributes["digits"] = 1
        b.step(spec.node, "gemm_weights", inputs, [b.output(spec.output())], **attributes)


def _recipe(spec: CompressedMatMulSpec) -> str:
    return f"weights in blocks of {spec.block_size}"


def _form(spec: CompressedMatMulSpec, codes: _Codes) -> dict[str, Attribute]:
    k, n = spec.weights.shape.get_shape()
    return {**codes.form(), "n": n, "k": k, "block": spec.block_size}


def _packed(spec: CompressedMatMulSpec, codes: _Codes) -> Array:
    attributes = _form(spec, codes)
    is_signed = spec.weights.element_type.is_signed
    # Neither blocks that begin in the middle of a byte, nor signed zero points beside unsigned codes.
    is_plain = spec.block_size % 2 == 0 and not (is_signed and attributes["zero_points"])
    columns = _stored_columns(spec.weights) if is_plain else ()
    if columns:
        # As they are stored, which is unsigned: unpacking takes several times as long as packing.
        stored = [column.data.reshape(column.shape[0], -1) for column in columns]
        matrix = stored[0] if len(stored) == 1 else np.concatenate(stored)
        attributes["column_bytes"] = matrix.shape[1]
    else:
        matrix = codes.bytes_of(spec.weights)
        attributes["is_signed"] = int(is_signed)
    arrays = [matrix, np.ascontiguousarray(codes.data(spec.scale), np.float32)]
    if attributes["zero_points"]:
        arrays.append(codes.bytes_of(codes.given_zero_point))
    packed = pack("pack_weights", arrays, attributes, isa=codes.store.isa)
    for column in columns:
        column.release()
    return packed


def _stored_columns(weights: Output) -> Sequence[Constant]:
    """The constants of u8 that have the columns of weights of 4 or 8 bits; none if they are stored in another form."""
    assert isinstance(weights.node, Constant)
    parts = weights.node.bases if isinstance(weights.node.derivation, JoinedColumns) else [weights.node]
    for part in parts:
        if not isinstance(part.derivation, PackedColumns) or part.derivation.bits not in (4, 8):
            return ()
    found = [part.bases[0] for part in parts]
    return found if len({column.shape[1:] for column in found}) == 1 else ()


@lowers("CompressedGather", domain=INTERNAL_DOMAIN, spec=CompressedGatherSpec)
class CompressedGatherLowering(OpLowering[CompressedGatherSpec]):
    """Rows of a constant table, which are dequantized when they are looked up."""

    def check(self, spec: CompressedGatherSpec) -> Refusal | None:
        constants = _check_constants(spec.data, spec.scale, spec.zero_point)
        return first_refusal(check_types([spec.scale, spec.output()], F32), constants)

    def pack(self, spec: CompressedGatherSpec, weights: WeightStore, precision: str) -> Sequence[Output]:
        codes = _Codes(spec.data, spec.scale, spec.zero_point, weights)
        for sources, recipe, make in _tables(codes):
            codes.stored(sources, recipe, make)
        return codes.operands

    def lower(self, spec: CompressedGatherSpec, b: SegmentBuilder) -> None:
        codes = _Codes(spec.data, spec.scale, spec.zero_point, b.store)
        inputs = [b.weights(sources, recipe, make) for sources, recipe, make in _tables(codes)]
        rows, columns = spec.data.shape.get_shape()
        b.step(
            spec.node,
            "gather_weights",
            [*inputs, b.input(spec.indices)],
            [b.output(spec.output())],
            **codes.form(),
            rows=rows,
            columns=columns,
            block=spec.block_size,
            count=math.prod(b.shape(spec.indices)),
            index_bytes=item_size(spec.indices.element_type),
        )


def _tables(codes: _Codes) -> list[tuple[list[Output], str, Any]]:
    """The sources, recipe and function of each array that `gather_weights` reads."""
    form = codes.form()

    def rows() -> Array:
        found = codes.unsigned(codes.codes)
        if form["bits"] == 4:
            found = np.pad(found, ((0, 0), (0, found.shape[1] % 2)))
            found = found[:, ::2] | found[:, 1::2] << 4
        return np.ascontiguousarray(found)

    def scales() -> Array:
        return codes.data(codes.scale).astype(np.float16 if form["half_scales"] else np.float32)

    made = [([codes.codes], "rows of codes", rows), ([codes.scale], "scales of rows", scales)]
    if form["zero_points"]:
        zero_point = codes.given_zero_point
        made.append(([zero_point], "zero points of rows", lambda: codes.unsigned(zero_point)))
    return made


def _check_constants(*values: Output | None) -> Refusal | None:
    for value in values:
        if value is not None and not isinstance(value.node, Constant):
            return Refusal(RefusalCause.CONSTANT, f"{value.name} is computed; expected a constant")
    return None


@dataclass(frozen=True, slots=True)
class _Codes:
    """Constant integers of 2, 4 or 8 bits with scales and zero points, in the forms of kernels."""

    codes: Output
    scale: Output
    zero_point: Output | None
    store: WeightStore

    @property
    def operands(self) -> list[Output]:
        """The operands that are given: codes, scale, zero point."""
        return [value for value in (self.codes, self.scale, self.zero_point) if value is not None]

    @property
    def given_zero_point(self) -> Output:
        """The zero points, if there are any."""
        assert self.zero_point is not None
        return self.zero_point

    def form(self) -> dict[str, Attribute]:
        """The attributes that describe codes and scales.

        Scales that are exact in f16 are stored in f16, and a zero point that all blocks share is not stored. Both
        depend on data that an imported network no longer has, so the form is stored with the weights.
        """
        found = self.stored(self.operands[1:], f"form of {self.codes.element_type} in blocks", self._find_form)
        is_half, has_zero_points, center = found.reshape(-1).view(np.int32).tolist()
        made: dict[str, Attribute] = {"bits": 8 if self._is_byte else 4}
        made |= {"half_scales": is_half, "zero_points": has_zero_points}
        return made if has_zero_points else {**made, "center": center}

    def stored(self, sources: Sequence[Output], recipe: str, make: Any) -> Array:
        """An array computed from constants, once per network, and stored in its blob."""
        return self.store.get(self.store.key(sources, recipe), sources, make)

    def data(self, value: Output) -> Array:
        """The elements of a constant, from the store of weights."""
        assert isinstance(value.node, Constant)
        return self.store.data(value.node)

    def bytes_of(self, value: Output) -> Array:
        """Integers in a byte each: all 8 bits, or the low 4, in which ml_dtypes keeps integers of 4 bits."""
        data = self.data(value)
        return np.ascontiguousarray(data.astype(np.int8) if value.element_type is i2 else data).view(np.uint8)

    def unsigned(self, value: Output) -> Array:
        """The same as unsigned numbers: signed ones plus 8 or 128."""
        whole = np.int8 if value.element_type.is_signed else np.uint8
        return self.data(value).astype(whole, copy=False).view(np.uint8) + np.uint8(self._offset)

    def _find_form(self) -> Array:
        scales, zero_point = self.data(self.scale).astype(np.float32), self.zero_point
        zero_points = np.zeros(1, np.int64) if zero_point is None else self.data(zero_point).astype(np.int64)
        with np.errstate(over="ignore"):
            is_half = np.isfinite(scales).all() and (scales.astype(np.float16).astype(np.float32) == scales).all()
        first = zero_points.flat[0]
        is_one = (zero_points == first).all()
        return np.array([is_half, not is_one, first + self._offset if is_one else 0], np.int32)

    @property
    def _is_byte(self) -> bool:
        return self.codes.element_type in (i8, u8)

    @property
    def _offset(self) -> int:
        """The number added to signed numbers, so that the smallest becomes 0 or, with 2 bits, 6."""
        if not self.codes.element_type.is_signed:
            return 0
        return 128 if self._is_byte else 8
