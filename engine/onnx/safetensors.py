"""Weights in a file of the safetensors format: found by name, used in place, and of the type that the model states.

The format (https://huggingface.co/docs/safetensors): the length of a header as 8 little-endian bytes; the header, a
JSON object with type, shape and position of each tensor; the data.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import ExternalDataError, ModelError, ModelReadError
from engine.ir import ElementType
from engine.onnx.functions import walk_graphs
from engine.onnx.skeleton import INLINE_BYTES
from engine.onnx.source import map_file
from engine.startup.onnx_library import onnx

SUFFIX: Final = ".safetensors"

_MAX_HEADER: Final = 100_000_000  # the limit of the safetensors library
_TYPES: Final = {
    "BOOL": "bool", "U8": "u8", "I8": "i8", "U16": "u16", "I16": "i16", "U32": "u32", "I32": "i32", "U64": "u64",
    "I64": "i64", "F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f64", "C64": "c64", "F8_E4M3": "f8e4m3fn",
    "F8_E5M2": "f8e5m2", "F8_E4M3FNUZ": "f8e4m3fnuz", "F8_E5M2FNUZ": "f8e5m2fnuz", "F8_E8M0": "f8e8m0",
}  # fmt: skip
_DATA_FIELDS: Final = (
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "external_data",
)  # fmt: skip


class SafetensorsFile:
    """The tensors in one file. `label` names it in messages. Raises `ExternalDataError` if it is damaged."""

    __slots__ = ("_data", "_entries", "label")

    def __init__(self, data: memoryview, label: str) -> None:
        self.label = label
        if len(data) < 8:
            raise ExternalDataError(f"{label} has {len(data)} bytes; a safetensors file has at least 8")
        length = int.from_bytes(data[:8], "little")
        if length > min(len(data) - 8, _MAX_HEADER):
            raise ExternalDataError(
                f"{label} states a header of {length} bytes, of at most {min(len(data) - 8, _MAX_HEADER)}; "
                "it is truncated or not a safetensors file"
            )
        try:
            entries = json.loads(bytes(data[8 : 8 + length]), object_pairs_hook=_without_repetition)
        except (ValueError, RecursionError) as e:
            raise ExternalDataError(f"{label} has a header that is not JSON: {e}") from e
        if not isinstance(entries, dict):
            raise ExternalDataError(f"{label} has a header that is not a JSON object")
        self._entries: dict[str, Any] = {name: entry for name, entry in entries.items() if name != "__metadata__"}
        self._data = data[8 + length :]

    @classmethod
    def open(cls, path: Path, label: str) -> SafetensorsFile:
        """The file at `path`, mapped. Raises `ExternalDataError`."""
        try:
            return cls(map_file(path, label), label)
        except ExternalDataError:
            raise
        except ModelReadError as e:
            raise ExternalDataError(str(e)) from e

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """The names of the tensors, in the order of the header."""
        return iter(self._entries)

    def array(self, name: str) -> NDArray[Any]:
        """The tensor of this name, in place. Raises `ExternalDataError` if its description is wrong."""
        dtype, shape, begin, end = self._described(name)
        if dtype not in _TYPES:
            raise ExternalDataError(f"tensor `{name}` is {dtype} in {self.label}; expected {', '.join(_TYPES)}")
        element_type = ElementType.parse(_TYPES[dtype])
        data = self._bytes(name, element_type.byte_size(math.prod(shape)), begin, end)
        return np.frombuffer(data, element_type.numpy).reshape(shape)

    def content(self, tensor: onnx.TensorProto) -> memoryview:
        """The bytes of the tensor of this name, in place.

        Raises `ExternalDataError` if there is none, or it has another type or shape, or a position outside the file.
        """
        name = tensor.name
        if name not in self:
            raise ExternalDataError(
                f"tensor `{name}` is not in {self.label}, which has {len(self._entries)} tensors"
                f"{''.join(f', such as `{each}`' for each in list(self._entries)[:1])}; names must be equal"
            )
        dtype, shape, begin, end = self._described(name)
        try:
            element_type = ElementType.from_onnx(tensor.data_type)
        except ModelError as e:
            raise ExternalDataError(f"tensor `{name}`: {e}") from e
        if _TYPES.get(dtype) != element_type.name or shape != list(tensor.dims):
            raise ExternalDataError(
                f"tensor `{name}` is {dtype}{shape} in {self.label}, expected {element_type}{list(tensor.dims)} as in "
                "the model; convert the weights, or export the model in the type of the weights"
            )
        return self._bytes(name, element_type.byte_size(math.prod(shape)), begin, end)

    def _bytes(self, name: str, needed: int, begin: int, end: int) -> memoryview:
        if not 0 <= begin <= end <= len(self._data) or end - begin != needed:
            raise ExternalDataError(
                f"tensor `{name}` takes {needed} bytes, but {self.label} states the bytes {begin} to {end} of "
                f"{len(self._data)}; the file is truncated or damaged"
            )
        return self._data[begin:end]

    def _described(self, name: str) -> tuple[str, list[int], int, int]:
        entry = self._entries[name]
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            if isinstance(dtype, str) and isinstance(shape, list) and all(map(_is_count, (*shape, begin, end))):
                return dtype, shape, begin, end
        except (KeyError, TypeError, ValueError):
            pass
        raise ExternalDataError(f"tensor `{name}` has no valid dtype, shape and data_offsets in {self.label}")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


class Weights:
    """Data for a model's initializers by name, in place of their own; the other initializers keep theirs."""

    __slots__ = ("_file", "_key")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = SafetensorsFile.open(Path(path), f"weights `{os.fspath(path)}`")
        self._key = os.urandom(16).hex()  # a file cannot forge a reference

    def apply(self, model: onnx.ModelProto) -> None:
        """Refer to this file from every initializer of `model` that it has. Raises `ExternalDataError` if it has none.

        Small tensors are copied, since the inference of shapes reads their values.
        """
        count = 0
        for graph in walk_graphs(model.graph):
            for tensor in graph.initializer:
                if tensor.name in self._file:
                    self._refer(tensor)
                    count += 1
        if not count:
            raise ExternalDataError(
                f"{self._file.label} does not contain any of the model's initializers; the names must be equal"
            )

    def content(self, tensor: onnx.TensorProto) -> memoryview | None:
        """The data of `tensor` if it refers to this file."""
        entries = tensor.external_data
        return self._file.content(tensor) if len(entries) == 1 and entries[0].key == self._key else None

    def _refer(self, tensor: onnx.TensorProto) -> None:
        data = self._file.content(tensor)
        for name in _DATA_FIELDS:
            tensor.ClearField(name)
        if len(data) <= INLINE_BYTES:
            tensor.ClearField("data_location")
            tensor.raw_data = bytes(data)
        else:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key=self._key, value="")
