"""Elementwise programs: what the attributes of an `elementwise` step are made of (csrc/kernels/elementwise.hpp)."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from engine.ir import ElementType
from engine.ir.element_type import bf16, boolean, f16, f32, f64, i8, i32, i64, u8

Array = np.ndarray[Any, np.dtype[Any]]


class Opcode(enum.IntEnum):
    """The operations of the kernel; the numbers are its."""

    COPY = 0
    NEG = 1
    ABS = 2
    SIGN = 3
    RELU = 4
    SQRT = 5
    RECIPROCAL = 6
    EXP = 7
    LOG = 8
    ERF = 9
    TANH = 10
    SIGMOID = 11
    SOFTPLUS = 12
    SOFTSIGN = 13
    MISH = 14
    HARD_SWISH = 15
    GELU = 16
    GELU_TANH = 17
    FLOOR = 18
    CEIL = 19
    ROUND = 20
    SIN = 21
    COS = 22
    TAN = 23
    ASIN = 24
    ACOS = 25
    ATAN = 26
    SINH = 27
    COSH = 28
    ASINH = 29
    ACOSH = 30
    ATANH = 31
    IS_NAN = 32
    IS_POSITIVE_INF = 33
    IS_NEGATIVE_INF = 34
    NOT = 35
    BIT_NOT = 36
    ADD = 40
    SUB = 41
    MUL = 42
    DIV = 43
    POW = 44
    MOD = 45
    FMOD = 46
    MIN = 47
    MAX = 48
    PRELU = 49
    ELU = 50
    CELU = 51
    THRESHOLDED_RELU = 52
    SWISH = 53
    EQUAL = 54
    LESS = 55
    LESS_OR_EQUAL = 56
    AND = 57
    OR = 58
    XOR = 59
    BIT_AND = 60
    BIT_OR = 61
    BIT_XOR = 62
    SHIFT_LEFT = 63
    SHIFT_RIGHT = 64
    WHERE = 70
    CLIP = 71
    SELU = 72
    HARD_SIGMOID = 73
    SHRINK = 74
    MUL_ADD = 75
    CAST = 100
    """To f32; to other types, by their numbers more."""


TYPE_CODES: Final[dict[ElementType, int]] = {
    f32: 0, f64: 1, i8: 2, u8: 3, i32: 4, i64: 5, boolean: 6, f16: 7, bf16: 8
}  # fmt: skip
"""The element types of the kernel and their numbers."""

_NARROW: Final = frozenset({f16, bf16})
_PREDICATES: Final = frozenset(
    {Opcode.IS_NAN, Opcode.IS_POSITIVE_INF, Opcode.IS_NEGATIVE_INF, Opcode.EQUAL, Opcode.LESS, Opcode.LESS_OR_EQUAL}
)
_MOVES: Final = frozenset({Opcode.COPY, Opcode.WHERE})


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An input, a constant, or the result of an instruction."""

    element_type: ElementType
    number: float | int | bool | None = None
    """Of a constant."""


@dataclass(frozen=True, slots=True, eq=False)
class _Instruction:
    opcode: int
    element_type: ElementType
    sources: tuple[Value, ...]
    result: Value


class ElementwiseProgram:
    """A program in the making. f16 and bf16 are computed in f32 and rounded after each operation, as ONNX asks."""

    def __init__(self) -> None:
        self._inputs: list[Value] = []
        self._constants: dict[tuple[ElementType, int], Value] = {}
        self._instructions: list[_Instruction] = []
        self._casts: dict[tuple[Value, ElementType], Value] = {}

    def input(self, element_type: ElementType) -> Value:
        """The next input of the step."""
        value = Value(element_type)
        self._inputs.append(value)
        return value

    def constant(self, number: Any, element_type: ElementType) -> Value:
        """One number for all elements."""
        exact = np.array(number).astype(element_type.numpy)
        bits = int.from_bytes(exact.tobytes().ljust(8, b"\0"), "little", signed=True)
        key = (element_type, bits)
        if key not in self._constants:
            self._constants[key] = Value(element_type, exact.item())
        return self._constants[key]

    def op(self, opcode: Opcode, *sources: Value) -> Value:
        """An operation on values of one type; of a WHERE, the first is bool.

        Constants in f32 may stand beside f16 and bf16: parameters that are not rounded to those.
        """
        narrow = next((source.element_type for source in sources if source.element_type in _NARROW), None)
        if narrow is None or opcode in _MOVES:
            element_type = sources[-1].element_type
            return self._append(opcode, element_type, sources, boolean if opcode in _PREDICATES else element_type)
        wide = self.op(opcode, *(self.cast(source, f32) for source in sources))
        return wide if wide.element_type is boolean else self.cast(wide, narrow)

    def parameter(self, number: float, beside: Value) -> Value:
        """A constant to compute with beside a value."""
        return self.constant(number, f32 if beside.element_type in _NARROW else beside.element_type)

    def cast(self, source: Value, element_type: ElementType) -> Value:
        """`source` in another type."""
        if source.element_type is element_type:
            return source
        key = (source, element_type)
        if key not in self._casts:
            opcode = Opcode.CAST + TYPE_CODES[element_type]
            self._casts[key] = self._append(opcode, source.element_type, (source,), element_type)
        return self._casts[key]

    def attributes(self, outputs: list[Value]) -> dict[str, list[int]]:
        """The step's attributes, those of its shape aside."""
        instructions = _fused(self._instructions, outputs)
        numbers: dict[Value, int] = {}
        for value in (*self._inputs, *self._constants.values(), *(each.result for each in instructions)):
            numbers[value] = len(numbers)
        program = []
        for each in instructions:
            sources = [numbers[source] for source in each.sources]
            program += [int(each.opcode), TYPE_CODES[each.element_type], *sources, *[-1] * (3 - len(sources))]
        return {
            "input_types": [TYPE_CODES[value.element_type] for value in self._inputs],
            "constants": [
                field for element_type, bits in self._constants for field in (TYPE_CODES[element_type], bits)
            ],
            "program": program,
            "results": [numbers[value] for value in outputs],
        }

    def _append(self, opcode: int, element_type: ElementType, sources: tuple[Value, ...], result: ElementType) -> Value:
        value = Value(result)
        self._instructions.append(_Instruction(opcode, element_type, sources, value))
        return value


def _fused(instructions: list[_Instruction], outputs: list[Value]) -> list[_Instruction]:
    """A product that is read by one f32 sum alone becomes a part of it."""
    reads = Counter(source for each in instructions for source in each.sources)
    reads.update(outputs)
    products = {
        each.result: each
        for each in instructions
        if each.opcode == Opcode.MUL and each.element_type is f32 and reads[each.result] == 1
    }
    fused, gone = [], set()
    for each in instructions:
        if each.opcode == Opcode.ADD:
            for product, other in (each.sources, each.sources[::-1]):
                if product in products:
                    gone.add(product)
                    sources = (*products[product].sources, other)
                    each = replace(each, opcode=Opcode.MUL_ADD, sources=sources)
                    break
        fused.append(each)
    return [each for each in fused if each.result not in gone]
