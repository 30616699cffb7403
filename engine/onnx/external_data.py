"""Tensor data in files beside the model, used in place and never read from outside the model's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from engine.errors import ExternalDataError, ModelReadError
from engine.files import file_beside
from engine.onnx.safetensors import SUFFIX, SafetensorsFile
from engine.onnx.source import map_with_status
from engine.startup.onnx_library import onnx

_KNOWN_KEYS: Final = frozenset({"location", "offset", "length", "checksum", "basepath"})


class ExternalData:
    """The data files of one model; each is mapped once. `model` is None if the model came without a folder.

    Attributes:
        statuses: what `os.fstat` says of each file that was mapped, by its location.
    """

    __slots__ = ("_files", "_indexed", "_model", "statuses")

    def __init__(self, model: Path | None) -> None:
        self._files: dict[str, memoryview] = {}
        self._indexed: dict[str, SafetensorsFile] = {}
        self._model = model
        self.statuses: dict[str, os.stat_result] = {}

    def content(self, tensor: onnx.TensorProto, needed: int) -> memoryview:
        """The `needed` bytes of `tensor`: at its offset, or without an offset in a safetensors file, by its name.

        Raises `ExternalDataError` naming the tensor, needed and available bytes.
        """
        entries = _entries(tensor)
        location = entries.get("location", "")
        if location.endswith(SUFFIX) and "offset" not in entries:
            return self._named(tensor, location, needed)
        start = _number(tensor, entries, "offset", 0)
        length = _number(tensor, entries, "length", needed)
        if length != needed:
            raise ExternalDataError(
                f"tensor `{tensor.name}` takes {needed} bytes, but states a length of {length} for its external data "
                f"`{location}`"
            )
        if not needed:
            self._resolve(tensor, location)
            return memoryview(b"")
        data = self._file(tensor, location, needed)
        if start + needed > len(data):
            raise ExternalDataError(
                f"tensor `{tensor.name}` needs {needed} bytes at offset {start} of its external data `{location}`, "
                f"but {max(0, len(data) - start)} are available (the file has {len(data)}); the file is truncated or "
                "belongs to another model"
            )
        return data[start : start + needed]

    def _named(self, tensor: onnx.TensorProto, location: str, needed: int) -> memoryview:
        found = self._indexed.get(location)
        if found is None:
            data = self._file(tensor, location, needed)
            found = self._indexed[location] = SafetensorsFile(data, f"external data `{location}`")
        return found.content(tensor)

    def _file(self, tensor: onnx.TensorProto, location: str, needed: int) -> memoryview:
        data = self._files.get(location)
        if data is None:
            path = self._resolve(tensor, location)
            try:
                mapped = map_with_status(path, f"external data `{location}` of tensor `{tensor.name}`")
            except ModelReadError as e:
                raise ExternalDataError(f"{e}; {needed} bytes of it are needed") from e
            data, self.statuses[location] = mapped
            self._files[location] = data
        return data

    def _resolve(self, tensor: onnx.TensorProto, location: str) -> Path:
        """The real path of `location`, which must be in one of the model's folders."""
        if self._model is None:
            raise ExternalDataError(
                f"tensor `{tensor.name}` has its data in the file `{location}`, but the model was not read from a "
                "path; pass its path, or move the data into the model (onnx.external_data_helper)"
            )
        if not location or "\0" in location:
            raise ExternalDataError(f"tensor `{tensor.name}` has external data with no usable location: {location!r}")
        path = file_beside(self._model, location)
        if path is None:
            raise ExternalDataError(_outside(tensor, location))
        return path


def _outside(tensor: onnx.TensorProto, location: str) -> str:
    return (
        f"tensor `{tensor.name}` has its data at `{location}`, outside the model's folder; only files inside are "
        "read: move it beside the model and store its relative path"
    )


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries and entry.key in _KNOWN_KEYS:
            raise ExternalDataError(f"tensor `{tensor.name}` states its external {entry.key} twice")
        entries[entry.key] = entry.value
    return entries


def _number(tensor: onnx.TensorProto, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise ExternalDataError(
            f"tensor `{tensor.name}`: external {key} {text[:40]!r} is not a number of bytes; expected digits"
        )
    return int(text)
