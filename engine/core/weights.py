"""Files that have the weights of blobs: other blobs, and models."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from engine.blob import BlobWeights, WeightsFile, is_blob
from engine.blob.source import ALIGNMENT
from engine.core.model_files import ModelFiles
from engine.errors import BlobError, BlobFormatError, EngineError
from engine.files.digest import sha256

if TYPE_CHECKING:
    from engine.onnx.weight_spans import WeightSpan

_START: Final = 4096
"""Bytes of a tensor that tell it from most others of its size."""


def open_weights(path: str | os.PathLike[str]) -> WeightsFile:
    """Open a blob, or a model with the files beside it. Raises `BlobError` if it is neither."""
    if not isinstance(path, (str, os.PathLike)):
        raise BlobError(
            f"weights: expected the path of the file that has the blob's weights; got {type(path).__name__}"
        )
    return BlobWeights(path) if is_blob(path) else ModelWeights(path)


class ModelWeights(WeightsFile):
    """The tensors of an ONNX model. Finding one hashes the candidates of its size; nothing else is read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._unhashed: dict[int, list[WeightSpan]] | None = None
        self._hashed: dict[tuple[str, int], WeightSpan] = {}
        if not os.path.isfile(path):
            raise BlobError(f"{self.path}: no such file; expected the model, or the blob, that has the weights")

    def files(self) -> tuple[str, ...]:
        """The model, and the files of its external data."""
        from engine.onnx.weight_spans import data_files

        try:
            return (self.path, *map(str, data_files(self.path)))
        except EngineError as e:
            raise BlobError(f"{self.path} is neither a blob nor a model: {e}") from e

    def find(self, sha256: str, size: int) -> Mapping[str, Any] | None:
        """File and position of a tensor."""
        for span in self._spans().pop(size, ()):
            self._hashed.setdefault((_hash(self._view(span)), size), span)
        found = self._hashed.get((sha256, size))
        return None if found is None else {"file": found.location, "start": found.start}

    def read(self, place: Mapping[str, Any], size: int) -> memoryview:
        """The bytes of a tensor."""
        from engine.onnx.weight_spans import WeightSpan

        file, start = place.get("file"), place.get("start")
        if not isinstance(file, str) or type(start) is not int or start < 0:
            raise BlobFormatError(f"the blob was exported with a blob, and not with the model {self.path}")
        return self._view(WeightSpan(file, start, size))

    def _spans(self) -> dict[int, list[WeightSpan]]:
        if self._unhashed is None:
            from engine.onnx.weight_spans import weight_spans

            try:
                spans = weight_spans(self.path)
            except EngineError as e:
                raise BlobError(f"{self.path} is neither a blob nor a model: {e}") from e
            self._unhashed = defaultdict(list)
            for span in spans:
                self._unhashed[span.size].append(span)
        return self._unhashed

    def _view(self, span: WeightSpan) -> memoryview:
        from engine.onnx.weight_spans import read_span

        try:
            return read_span(self.path, span)
        except EngineError as e:
            raise BlobError(f"the weights of the blob cannot be read: {e}") from e


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
            if _hash(self._view(span.location, span.start, size)) == sha256:
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


def _hash(data: memoryview) -> str:
    return sha256(data).hexdigest()
