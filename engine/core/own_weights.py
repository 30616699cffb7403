"""The weights of cached networks that stay in the files of the model."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from engine.blob import WeightsFile
from engine.blob.bound import hash_of
from engine.blob.source import ALIGNMENT
from engine.core.model_files import ModelFiles
from engine.errors import BlobError, BlobFormatError

if TYPE_CHECKING:
    from engine.onnx.weight_spans import WeightSpan

_START: Final = 4096
"""Bytes of a tensor that tell it from most others of its size."""


class OwnWeights(WeightsFile):
    """The tensors in the files of a model that are watched, and so known to be what they were.

    Only tensors at multiples of 64 bytes, where kernels use them in place. Reading one loads nothing of the compiler.
    """

    def __init__(self, files: ModelFiles) -> None:
        self.path = str(files.path)
        # Of a file that was changed just before, only its content tells whether it was changed again.
        self.is_verified = all(stamp.is_settled(time.time_ns()) for stamp in files.stamps.values())
        self._files = files
        self._mapped: dict[str, memoryview] = {}
        self._spans: dict[int, list[WeightSpan]] | None = None

    def files(self) -> tuple[str, ...]:
        """The watched files."""
        return tuple(str(self._files.place(location)) for location in self._files.stamps)

    def find(self, sha256: str, size: int) -> Mapping[str, Any] | None:
        """File and position of a tensor."""
        for span in self._spans_of(size):
            if hash_of([self._view(span.location, span.start, size)]) == sha256:
                return {"file": span.location, "start": span.start}
        return None

    def place_of(self, buffers: Sequence[memoryview]) -> tuple[str, Mapping[str, Any]] | None:
        """Hash and position of a tensor. Nothing is hashed but what begins like a tensor of its size."""
        size = sum(map(len, buffers))
        start = bytes(buffers[0][:_START]) if buffers else b""
        if not any(self._view(span.location, span.start, len(start)) == start for span in self._spans_of(size)):
            return None
        return super().place_of(buffers)

    def read(self, place: Mapping[str, Any], size: int) -> memoryview:
        """The bytes of a tensor."""
        file, start = place.get("file"), place.get("start")
        if not isinstance(file, str) or type(start) is not int or start < 0:
            raise BlobFormatError(f"the position of a tensor in {self.path} is none: {place!r:.80}")
        return self._view(file, start, size)

    def _spans_of(self, size: int) -> list[WeightSpan]:
        if self._spans is None:
            from engine.onnx.weight_spans import weight_spans

            self._spans = defaultdict(list)
            for span in weight_spans(self._files.path):
                if span.start % ALIGNMENT == 0 and span.location in self._files.stamps:
                    self._spans[span.size].append(span)
        return self._spans.get(size, [])

    def _view(self, location: str, start: int, size: int) -> memoryview:
        if location not in self._mapped:
            self._mapped[location] = self._files.mapped(location)
        data = self._mapped[location]
        if start + size > len(data):
            raise BlobError(f"{self.path}: a tensor is beyond the end of `{location or self.path}`")
        return data[start : start + size]
