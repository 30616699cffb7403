"""Whether a shared library is complete, before the loader maps it: a page beyond the end of a file ends the process.

Reads the headers of an ELF file (System V ABI, chapters 4 and 5): the tables of segments and sections, from which the
minimum length of the file follows. The computations of a library are its author's matter; this finds damage.
"""

from __future__ import annotations

import os
import struct
from typing import Any, BinaryIO, Final

from engine.startup import dataclass

_MAGIC: Final = b"\x7fELF"
_LOAD, _DYNAMIC = 1, 2
_NULL, _STRTAB, _NOBITS = 0, 3, 8
_SHARED: Final = 3
_MAX_SECTIONS: Final = 0xFF00
"""Numbers from this one on have other meanings."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The fields of a class of ELF files, without the bytes before them; `x` skips what is not needed."""

    header: str  # type, offsets of both tables, sizes and counts of their entries, index of the section names
    segment: str  # type, offset, size in the file, size in memory
    section: str  # type, offset, size


_LAYOUTS: Final = {
    1: _Layout("H10xII6xHHHHH", "II8xII8x", "4xI8xII16x"),
    2: _Layout("H14xQQ6xHHHHH", "I4xQ16xQQ8x", "4xI16xQQ24x"),
}
_ORDERS: Final = {1: "<", 2: ">"}


def why_incomplete(path: str | os.PathLike[str]) -> str | None:
    """Why a file is not a complete shared library, as the end of a sentence; None if it is, or is not an ELF file.

    The loader names the faults of other files itself. Raises `OSError`.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        ident = file.read(16)
        if not ident.startswith(_MAGIC) or len(ident) < 16:
            return None
        layout, order = _LAYOUTS.get(ident[4]), _ORDERS.get(ident[5])
        if layout is None or order is None:
            return None
        return _why_not_whole(file, size, layout, order)


def _why_not_whole(file: BinaryIO, size: int, layout: _Layout, order: str) -> str | None:
    header = _read(file, 16, order + layout.header)
    if header is None:
        return f"it is cut short: it has {size} bytes, which is less than its header"
    kind, segments_at, sections_at, segment_size, segments, section_size, sections, names = header
    if kind != _SHARED:
        return f"it is an ELF file of type {kind}, and not a shared library, type {_SHARED}"
    for what, at, each, count, form in (
        ("segments", segments_at, segment_size, segments, layout.segment),
        ("sections", sections_at, section_size, sections, layout.section),
    ):
        if count and each != struct.calcsize(order + form):
            return f"its header is damaged: an entry of its table of {what} has {each} bytes"
        if at + each * count > size:
            return _cut(size, at + each * count, f"table of {what}")
    if not segments:
        return "its header is damaged: it has no segments"
    return _segments(file, size, segments_at, segments, order + layout.segment) or (
        _sections(file, size, sections_at, min(sections, _MAX_SECTIONS), names, order + layout.section)
    )


def _segments(file: BinaryIO, size: int, at: int, count: int, form: str) -> str | None:
    loaded, dynamic = [], []
    for index in range(count):
        entry = _read(file, at + index * struct.calcsize(form), form)
        if entry is None:
            return _cut(size, at + (index + 1) * struct.calcsize(form), "table of segments")
        kind, offset, stored, in_memory = entry
        if offset + stored > size:
            return _cut(size, offset + stored, f"segment {index}")
        if kind == _LOAD:
            if stored > in_memory:
                return f"its segment {index} is damaged: it takes {stored} bytes of the file, and {in_memory} of memory"
            loaded.append((offset, offset + stored))
        elif kind == _DYNAMIC:
            dynamic.append((offset, offset + stored))
    for start, end in dynamic:
        if not any(first <= start and end <= last for first, last in loaded):
            return "its segments are damaged: no loaded segment contains the dynamic section"
    return None if loaded and dynamic else "its segments are damaged: none is loaded, or none has the dynamic section"


def _sections(file: BinaryIO, size: int, at: int, count: int, names: int, form: str) -> str | None:
    for index in range(count):
        entry = _read(file, at + index * struct.calcsize(form), form)
        if entry is None:
            return _cut(size, at + (index + 1) * struct.calcsize(form), "table of sections")
        kind, offset, length = entry
        if kind not in (_NULL, _NOBITS) and offset + length > size:
            return _cut(size, offset + length, f"section {index}")
        # The table is at the end of the file: bytes that were reserved and not written are zero.
        if index == names and names and kind != _STRTAB:
            return f"its table of sections is damaged: section {index} has type {kind}, expected {_STRTAB}, its names"
    return None


def _read(file: BinaryIO, at: int, form: str) -> tuple[Any, ...] | None:
    file.seek(at)
    data = file.read(struct.calcsize(form))
    return struct.unpack(form, data) if len(data) == struct.calcsize(form) else None


def _cut(size: int, needed: int, what: str) -> str:
    return f"it is cut short: it has {size} bytes, and its {what} ends at byte {needed}"
