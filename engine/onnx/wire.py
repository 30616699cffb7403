"""Parses the protobuf wire format in place, to find the positions of fields.

Every length is checked against its message before it is used, so that forged sizes cause neither out-of-bounds
reads nor allocations.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelReadError

Buffer: TypeAlias = "bytes | memoryview"

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5

MAX_DEPTH: Final = 100
"""The deepest nesting of messages: protobuf's own limit."""

_MAX_FIELD: Final = (1 << 29) - 1
_VARINT_BYTES: Final = 10
_CHUNK: Final = 1 << 20


class WireError(ModelReadError):
    """The data is not a valid protobuf message; `offset` is the position of the error."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"byte {offset}: {problem}")
        self.offset = offset


_SHORT_TEXTS: Final = b"|".join(re.escape(bytes([length])) + b".{%d}" % length for length in range(17))
_ELEMENTS: Final = re.compile(
    rb"(?:\x3d.{4}|\x40[\x80-\xff]{0,8}+[\x00-\x7f]|\x4a(?:" + _SHORT_TEXTS + rb"))*+", re.DOTALL
)
ELEMENTS: Final = _ELEMENTS if sys.version_info >= (3, 11, 5) else None
"""Floats, ints and short strings of an attribute. Integers of 64 bits or more are left to `varint`, which checks.

None before Python 3.11.5, whose `re` continues behind the position where the body of a possessive repeat failed.
"""


def fields(
    data: Buffer, start: int, end: int, skipped: re.Pattern[bytes] | None = None
) -> Iterator[tuple[int, int, int, int, int]]:
    """The fields of the message in `data[start:end]`, in order: (number, wire type, begin, payload, stop).

    Those that `skipped` matches, a pattern that matches any number of whole valid fields, are left out.

    The field with its tag is `data[begin:stop]`; a LENGTH field's content is `data[payload:stop]`. Raises
    `WireError` if a field is malformed or extends beyond `end`.
    """
    position = start
    while position < end:
        if skipped is not None:
            found = skipped.match(data, position, end)
            position = position if found is None else found.end()
            if position == end:
                return
        begin = position
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = varint(data, begin, end)
        wire = tag & 7
        number = tag >> 3
        if not 0 < number <= _MAX_FIELD:
            raise WireError(begin, f"field number {number} is not valid")
        if wire == LENGTH:
            length = data[position] if position < end else 0x80
            if length < 0x80:
                position += 1
            else:
                length, position = varint(data, position, end)
            payload = position
            position += length
        elif wire == VARINT:
            payload = position
            _, position = varint(data, position, end)
        elif wire in (FIXED32, FIXED64):
            payload = position
            position += 4 if wire == FIXED32 else 8
        else:
            raise WireError(begin, f"wire type {wire} is not used by ONNX")
        if position > end:
            raise WireError(
                begin, f"field {number} needs {position - payload} bytes, but its message has {end - payload} left"
            )
        yield number, wire, begin, payload, position


def varint(data: Buffer, start: int, end: int) -> tuple[int, int]:
    """The varint at `start`, and its end. Raises `WireError` if it extends beyond `end` or has more than 64 bits."""
    value = shift = 0
    position = start
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, position
        shift += 7
        if position - start == _VARINT_BYTES:
            break
    else:
        raise WireError(start, "an integer is truncated")
    raise WireError(start, "an integer has more than 64 bits")


def encode_varint(value: int) -> bytes:
    """`value`, not negative, as a varint."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_length(number: int, length: int) -> bytes:
    """The tag and length that precede the content of LENGTH field `number`."""
    return encode_varint(number << 3 | LENGTH) + encode_varint(length)


def count_varints(data: Buffer) -> int:
    """The number of integers in a packed field. Raises `WireError` if the last one is truncated."""
    flat = np.frombuffer(data, dtype=np.uint8)
    count = 0
    for start in range(0, flat.size, _CHUNK):
        count += int(np.count_nonzero(flat[start : start + _CHUNK] < 0x80))
    if flat.size and flat[-1] >= 0x80:
        raise WireError(int(flat.size), "an integer is truncated")
    return count


def decode_varints(data: Buffer, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The integers of a packed field, truncated to the width of `dtype`; uses a few megabytes of scratch memory.

    Raises `WireError` if one is truncated or longer than ten bytes.
    """
    flat = np.frombuffer(data, dtype=np.uint8)
    result = np.empty(count_varints(data), dtype=dtype)
    start = done = 0
    while start < flat.size:
        part = flat[start : start + _CHUNK]
        ends = np.flatnonzero(part < 0x80)
        if not ends.size:
            raise WireError(start, "an integer has more than 64 bits")
        values = _decode_part(part[: ends[-1] + 1], ends, start)
        result[done : done + ends.size] = values.astype(dtype)
        done += ends.size
        start += int(ends[-1]) + 1
    return result


def _decode_part(part: NDArray[np.uint8], ends: NDArray[np.intp], offset: int) -> NDArray[np.uint64]:
    starts = np.concatenate(([0], ends[:-1] + 1))
    longest = int((ends - starts).max()) + 1
    if longest > _VARINT_BYTES:
        raise WireError(offset, "an integer has more than 64 bits")
    values = np.zeros(ends.size, dtype=np.uint64)
    for index in range(longest):
        live = starts + index <= ends
        septets = part[starts[live] + index] & np.uint8(0x7F)
        values[live] |= septets.astype(np.uint64) << np.uint64(7 * index)
    return values
