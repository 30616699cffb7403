"""The instructions of elementwise programs, and the values that they read and make."""

from __future__ import annotations

import enum

from engine.ir import ElementType
from engine.startup import dataclass


class Opcode(enum.StrEnum):
    """Operations of the kernel, by their names in csrc/codes.def; others are in `engine.native.pointwise_functions`."""

    COPY = enum.auto()
    NEG = enum.auto()
    ABS = enum.auto()
    SIGN = enum.auto()
    RELU = enum.auto()
    SQRT = enum.auto()
    RECIPROCAL = enum.auto()
    EXP = enum.auto()
    GELU = enum.auto()
    GELU_TANH = enum.auto()
    ROUND = enum.auto()
    IS_NAN = enum.auto()
    IS_POSITIVE_INF = enum.auto()
    IS_NEGATIVE_INF = enum.auto()
    NOT = enum.auto()
    BIT_NOT = enum.auto()
    ADD = enum.auto()
    SUB = enum.auto()
    MUL = enum.auto()
    DIV = enum.auto()
    POW = enum.auto()
    MOD = enum.auto()
    FMOD = enum.auto()
    MIN = enum.auto()
    MAX = enum.auto()
    CELU = enum.auto()
    EQUAL = enum.auto()
    LESS = enum.auto()
    LESS_OR_EQUAL = enum.auto()
    AND = enum.auto()
    OR = enum.auto()
    XOR = enum.auto()
    BIT_AND = enum.auto()
    BIT_OR = enum.auto()
    BIT_XOR = enum.auto()
    SHIFT_LEFT = enum.auto()
    SHIFT_RIGHT = enum.auto()
    WHERE = enum.auto()
    CLIP = enum.auto()
    ROUND_CLIP = enum.auto()
    MUL_ADD = enum.auto()
    QUANTIZE_U8 = enum.auto()
    QUANTIZE_I8 = enum.auto()
    QUANTIZE_DYNAMIC = enum.auto()
    DEQUANTIZE_U8 = enum.auto()
    DEQUANTIZE_I8 = enum.auto()
    CAST = enum.auto()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An input, a constant, or the result of an instruction."""

    element_type: ElementType
    number: float | int | bool | None = None
    """The value of a constant."""


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One operation on values of `element_type`, by its name in csrc/codes.def."""

    opcode: str
    element_type: ElementType
    sources: tuple[Value, ...]
    result: Value
    rounding: int = 0
    """The part of a cast's format to f8e8m0 that says how it rounds."""
