"""`model_identity`: a hash that tells models apart, without reading all of their weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from engine.ir.leaves import Constant
from engine.ir.model import Model
from engine.ir.walk import all_nodes

_END_BYTES: Final = 4096
_PIECES, _PIECE_BYTES = 64, 64


def model_identity(model: Model) -> str:
    """SHA-256, in hex, of a model's text and of samples of its constants: both ends, and 64 pieces between them.

    Models with another structure, other names or another training have another identity; a change of single weights may
    not be noticed. Constants that are derived from others are not computed: their bases are sampled.
    """
    import hashlib  # 2 MB, which most compilations need not load

    digest = hashlib.sha256(model.to_text().encode())
    for node in all_nodes(model):
        if isinstance(node, Constant):
            for piece in _samples(node):
                digest.update(piece)
    return digest.hexdigest()


def _samples(constant: Constant) -> Iterator[bytes]:
    """Samples of the data of a constant, or of those that it is derived from: computing it may take long."""
    if constant.bases:
        for base in constant.bases:
            yield repr(base.output(0).type).encode()
            yield from _samples(base)
    elif constant.byte_size:
        was_loaded = constant.is_loaded
        yield from _pieces(constant)
        if not was_loaded:
            constant.release()


def _pieces(constant: Constant) -> list[bytes]:
    data = constant.data
    if data.dtype.hasobject:
        return [repr(data.tolist()).encode()]
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if raw.size <= 2 * _END_BYTES:
        return [raw.tobytes()]
    starts = np.linspace(_END_BYTES, raw.size - _END_BYTES - _PIECE_BYTES, _PIECES).astype(np.int64)
    between = raw[starts[:, None] + np.arange(_PIECE_BYTES)]
    return [raw[:_END_BYTES].tobytes(), between.tobytes(), raw[-_END_BYTES:].tobytes()]
