"""Files that have the weights of blobs: other blobs, and models."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.blob import BlobWeights, WeightsFile, is_blob
from engine.errors import BlobError, BlobFormatError, EngineError
from engine.files.digest import sha256

if TYPE_CHECKING:
    from engine.onnx.weight_spans import WeightSpan


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
        """The `size` bytes at a place, as `find` returns it. Raises `BlobFormatError` if the place is malformed."""
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


def _hash(data: memoryview) -> str:
    return sha256(data).hexdigest()
