"""Elementwise programs, which become the attributes of `elementwise` steps (csrc/kernels/elementwise.hpp)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine.ir import ElementType
from engine.ir.element_type import (
    bf16,
    boolean,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i32,
    u2,
    u4,
    u8,
)
from engine.native import codes
from engine_cpu.lowering.elementwise_fusions import fused
from engine_cpu.lowering.elementwise_instructions import Instruction, Opcode, Value

Array = np.ndarray[Any, np.dtype[Any]]


SMALL_INTEGERS: Final = {i4: i8, i2: i8, u4: u8, u2: u8}
"""Integers that are stored in a byte each, whose other bits are ignored when it is read; and the type of the byte."""
SMALL_REALS: Final = frozenset({f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0, f6e2m3, f6e3m2, f4e2m1})
"""Floating-point types in bytes, with casts to f32, and from f32 and f64 (f8e8m0: from f32, by `power_of_two`)."""
_POWER_ROUNDING: Final = {"down": 1, "up": 2, "nearest": 3}
"""`PowerRounding` of elementwise.hpp, by its names in ONNX."""
_NARROW: Final = frozenset({f16, bf16})
_PREDICATES: Final = frozenset(
    {Opcode.IS_NAN, Opcode.IS_POSITIVE_INF, Opcode.IS_NEGATIVE_INF, Opcode.EQUAL, Opcode.LESS, Opcode.LESS_OR_EQUAL}
)
_MOVES: Final = frozenset({Opcode.COPY, Opcode.WHERE})


class ElementwiseProgram:
    """A program under construction. f16 and bf16 are computed in f32 and rounded after each operation, as in ONNX."""

    def __init__(self) -> None:
        self._inputs: list[Value] = []
        self._constants: dict[tuple[ElementType, int], Value] = {}
        self._instructions: list[Instruction] = []
        self._casts: dict[tuple[Value, ElementType], Value] = {}

    def input(self, element_type: ElementType) -> Value:
        """The next input of the step."""
        value = Value(element_type)
        self._inputs.append(value)
        return value

    def constant(self, number: Any, element_type: ElementType) -> Value:
        """A value that is `number` for every element, rounded to `element_type`; equal ones are shared."""
        exact = np.array(number).astype(element_type.numpy)
        bits = int.from_bytes(exact.tobytes().ljust(8, b"\0"), "little", signed=True)
        key = (element_type, bits)
        if key not in self._constants:
            self._constants[key] = Value(element_type, exact.item())
        return self._constants[key]

    def op(self, opcode: str, *sources: Value) -> Value:
        """An operation on values of one type; the first operand of a WHERE is bool.

        f32 constants may be combined with f16 and bf16: parameters that are not rounded to these types.
        """
        narrow = next((source.element_type for source in sources if source.element_type in _NARROW), None)
        if narrow is None or opcode in _MOVES:
            element_type = sources[-1].element_type
            return self._append(opcode, element_type, sources, boolean if opcode in _PREDICATES else element_type)
        wide = self.op(opcode, *(self.cast(source, f32) for source in sources))
        return wide if wide.element_type is boolean else self.cast(wide, narrow)

    def parameter(self, number: float, beside: Value) -> Value:
        """A constant operand for a value."""
        return self.constant(number, f32 if beside.element_type in _NARROW else beside.element_type)

    def quantize(self, x: Value, scale: Value, zero_point: Value) -> Value:
        """f32 as 8-bit integers, of the type of the zero point."""
        opcode = Opcode.QUANTIZE_U8 if zero_point.element_type is u8 else Opcode.QUANTIZE_I8
        return self._append(opcode, f32, (x, scale, zero_point), zero_point.element_type)

    def dequantize(self, x: Value, scale: Value, zero_point: Value) -> Value:
        """8-bit integers, of the type of the zero point, as f32."""
        opcode = Opcode.DEQUANTIZE_U8 if x.element_type is u8 else Opcode.DEQUANTIZE_I8
        return self._append(opcode, f32, (x, scale, zero_point), f32)

    def cast(self, source: Value, element_type: ElementType) -> Value:
        """`source` converted to `element_type`, once for each type; `source` itself if it has the type."""
        if source.element_type is element_type:
            return source
        key = (source, element_type)
        if key not in self._casts:
            self._casts[key] = self._converted(source, element_type)
        return self._casts[key]

    def power_of_two(self, source: Value, round_mode: str, *, saturates: bool) -> Value:
        """`source` in f8e8m0, rounded as a Cast has it."""
        value = Value(f8e8m0)
        rounding = _POWER_ROUNDING[round_mode] << 16 | int(saturates) << 18
        self._instructions.append(Instruction(Opcode.CAST, f32, (self.cast(source, f32),), value, rounding))
        return value

    def _converted(self, source: Value, target: ElementType) -> Value:
        kind = source.element_type
        if kind in SMALL_INTEGERS:
            return self.cast(self._whole(source), target)
        if target in SMALL_INTEGERS:
            return self._low_bits(source, target)
        if (kind in SMALL_REALS and target is not f32) or (target in SMALL_REALS and kind not in (f32, f64)):
            return self.cast(self.cast(source, f32), target)
        return self._append(Opcode.CAST, kind, (source,), target)

    def _whole(self, source: Value) -> Value:
        """A small integer as one of 8 bits."""
        bits, byte = source.element_type.bits, SMALL_INTEGERS[source.element_type]
        if not byte.is_signed:
            return self._append(Opcode.BIT_AND, byte, (source, self.constant((1 << bits) - 1, byte)), byte)
        unused = self.constant(byte.bits - bits, byte)
        return self._append(
            Opcode.SHIFT_RIGHT, byte, (self._append(Opcode.SHIFT_LEFT, byte, (source, unused), byte), unused), byte
        )

    def _low_bits(self, source: Value, target: ElementType) -> Value:
        byte = SMALL_INTEGERS[target]
        whole = self.cast(self.cast(source, i32) if source.element_type.is_real else source, byte)
        return self._append(Opcode.BIT_AND, byte, (whole, self.constant((1 << target.bits) - 1, byte)), target)

    def attributes(self, outputs: list[Value]) -> dict[str, list[int]]:
        """The step's attributes, except its shape."""
        instructions = fused(self._instructions, outputs)
        numbers: dict[Value, int] = {}
        for value in (*self._inputs, *self._constants.values(), *(each.result for each in instructions)):
            numbers[value] = len(numbers)
        opcodes, types = codes("Opcode"), dict(codes("ElementCode"))
        types |= {small.name: types[byte.name] for small, byte in SMALL_INTEGERS.items()}
        types |= {small.name: types[u8.name] for small in SMALL_REALS}
        program = []
        for each in instructions:
            operands = [numbers[source] for source in each.sources]
            if each.opcode is Opcode.CAST:
                operands += [types[each.result.element_type.name], _format(each)]
            program += [opcodes[each.opcode], types[each.element_type.name], *operands, *[-1] * (3 - len(operands))]
        return {
            "input_types": [types[value.element_type.name] for value in self._inputs],
            "constants": [
                field for element_type, bits in self._constants for field in (types[element_type.name], bits)
            ],
            "program": program,
            "results": [numbers[value] for value in outputs],
        }

    def _append(self, opcode: str, element_type: ElementType, sources: tuple[Value, ...], result: ElementType) -> Value:
        value = Value(result)
        self._instructions.append(Instruction(opcode, element_type, sources, value))
        return value


def _format(cast: Instruction) -> int:
    """The format of the small floating-point type that a cast has, as in elementwise.hpp; or -1."""
    for element_type in (cast.element_type, cast.result.element_type):
        if element_type in SMALL_REALS:
            limits = element_type.finfo
            return int(limits.nexp | limits.nmant << 4 | (1 - limits.minexp) << 8 | cast.rounding)
    return -1
