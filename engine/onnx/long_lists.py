"""Lists of tree ensembles, taken from the wire format of a file without protobuf, which needs several times as long."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir.long_list import PART, LongList
from engine.onnx.wire import Buffer

_FLOAT_TAG: Final = 0x3D
_INT_TAG: Final = 0x40
_TEXT_TAG: Final = 0x4A
_MORE: Final = 0x80
"""The bit of all bytes of an integer but the last one."""
_MAX_BYTES: Final = 9
_TYPE_FIELD: Final = b"\xa0\x01"
"""The tag of the attribute's type, which writers put behind the elements."""
_TYPES: Final = {_FLOAT_TAG: 6, _INT_TAG: 7, _TEXT_TAG: 8}


def long_list(data: Buffer, start: int, end: int) -> tuple[int, int, LongList] | None:
    """The list in the attribute `data[start:end]`, and where its elements begin and end.

    None if the attribute has another form than writers give it, which is left to protobuf: the name, the elements one
    by one, and the type.
    """
    name_end = start + 2 + data[start + 1]
    if data[start] != 0x0A or data[start + 1] >= 0x80 or name_end + 8 > end:
        return None
    tag, stop = data[name_end], end - 3
    if bytes(data[stop : stop + 2]) != _TYPE_FIELD or data[end - 1] != _TYPES.get(tag):
        return None
    read = {_FLOAT_TAG: _floats, _INT_TAG: _integers, _TEXT_TAG: _texts}[tag]
    found = read(memoryview(data)[name_end:stop])
    return None if found is None else (name_end, stop, found)


def _floats(data: memoryview) -> LongList | None:
    if len(data) % 5:
        return None
    rows = np.frombuffer(data, np.uint8).reshape(-1, 5)
    if (rows[:, 0] != _FLOAT_TAG).any():
        return None
    return LongList.of_numbers(np.ascontiguousarray(rows[:, 1:]).view("<f4").reshape(-1).astype(np.float32))


def _integers(data: memoryview) -> LongList | None:
    """Integers of up to nine bytes: a negative one has ten."""
    flat = np.frombuffer(data, np.uint8)
    if len(flat) % 2 == 0:
        pairs = flat.reshape(-1, 2)
        if (pairs[:, 0] == _INT_TAG).all() and (pairs[:, 1] < _MORE).all():
            return LongList.of_numbers(pairs[:, 1].astype(np.int64))
    ends = np.flatnonzero(flat < _MORE)
    if len(ends) % 2 or flat[-1] >= _MORE:
        return None
    tags, last = ends[::2], ends[1::2]
    lengths = last - tags
    if tags[0] or (tags[1:] != last[:-1] + 1).any() or (flat[tags] != _INT_TAG).any() or lengths.max() > _MAX_BYTES:
        return None
    values = np.zeros(len(tags), np.int64)
    for index in range(int(lengths.max())):
        live = np.flatnonzero(lengths > index)
        values[live] |= (flat[tags[live] + 1 + index] & (_MORE - 1)).astype(np.int64) << (7 * index)
    return LongList.of_numbers(values)


def _texts(data: memoryview) -> LongList | None:
    """Texts of up to 127 bytes without the letter J, which is the tag."""
    whole, tag = bytes(data), bytes([_TEXT_TAG])
    if not whole.startswith(tag):
        return None
    found: list[str] = []
    known: dict[bytes, str] = {}
    start = 0
    while start < len(whole):
        stop = whole.find(tag, start + PART)
        stop = len(whole) if stop < 0 else stop
        pieces = whole[start:stop].split(tag)[1:]
        for piece in set(pieces) - known.keys():
            if not piece or piece[0] != len(piece) - 1:
                return None
            try:
                known[piece] = piece[1:].decode("utf-8")
            except UnicodeDecodeError:
                return None
        found.extend(map(known.__getitem__, pieces))
        start = stop
    return LongList.of_texts(found)
