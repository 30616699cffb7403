"""`write_model`: writes an ONNX file atomically, without copying the weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from engine.errors import ModelWriteError
from engine.files import complete_file, why_not_opened
from engine.ir import Constant, Model
from engine.onnx.exporter import MAX_INLINE_BYTES, export_proto, weight_bytes
from engine.onnx.wire import encode_length
from engine.ops.protos import tensor_to_proto, tensor_to_raw
from engine.startup.onnx_library import onnx

__all__ = ["write_model"]

Destination: TypeAlias = "str | os.PathLike[str] | BinaryIO"

_SPLICED_BYTES: Final = 1024
_PAGE: Final = 4096
_ALIGNMENT: Final = 64
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9


def write_model(model: Model, destination: Destination, *, external_data: int | None = None) -> None:
    """Write `model` as an ONNX file with the content that `model_to_proto` describes.

    Files are written under a temporary name and renamed when they are complete, which replaces existing ones.
    Weights are written without a copy.

    Args:
        destination: a path, or a binary stream.
        external_data: constants of at least this many bytes go to `<name>.data` beside the model. By default all
            are in the file itself, unless it would exceed 2 GB.

    Raises `ModelWriteError`, including for more than 2 GB or external data with a stream, which require a path.
    """
    is_path = isinstance(destination, (str, os.PathLike))
    if external_data is None and weight_bytes(model) > MAX_INLINE_BYTES:
        external_data = _SPLICED_BYTES
    if external_data is None:
        with _atomic(Path(destination)) if is_path else _checked_stream(destination) as file:  # type: ignore[arg-type]
            _write_inline(model, file)
        return
    if not is_path:
        raise ModelWriteError(
            f"model `{model.name}` cannot be written to a stream: its weights need a separate file; pass a path"
        )
    _write_external(model, Path(destination), external_data)  # type: ignore[arg-type]


def _write_inline(model: Model, file: BinaryIO) -> None:
    """Write proto and weights as one message; large weights of the main graph are written without a copy."""
    spliced: list[tuple[bytes, Constant]] = []

    def write_tensor(constant: Constant, name: str, is_main: bool) -> onnx.TensorProto | None:
        if not is_main or constant.byte_size < _SPLICED_BYTES:
            return tensor_to_proto(constant.data, name)
        spliced.append((_header(constant, name).SerializeToString(), constant))
        return None

    proto = export_proto(model, write_tensor)
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    heads: list[bytes] = []
    for header, constant in spliced:
        tail = encode_length(_RAW_DATA, constant.byte_size)
        length = len(header) + len(tail) + constant.byte_size
        heads.append(encode_length(_INITIALIZER, length) + header + tail)
    size = len(graph) + sum(map(len, heads)) + sum(constant.byte_size for _, constant in spliced)
    _write(file, proto.SerializeToString() + encode_length(_GRAPH, size) + graph)
    for head, (_, constant) in zip(heads, spliced, strict=True):
        _write(file, head)
        _write(file, _raw(constant))


def _write_external(model: Model, path: Path, threshold: int) -> None:
    if threshold < 0:
        raise ModelWriteError(f"external_data is {threshold}; expected the minimum size in bytes, or None")
    location = f"{path.name}.data"
    placed: list[tuple[int, Constant]] = []
    end = 0

    def write_tensor(constant: Constant, name: str, is_main: bool) -> onnx.TensorProto:
        nonlocal end
        size = constant.byte_size
        if not size or size < threshold:
            return tensor_to_proto(constant.data, name)
        alignment = _PAGE if size >= _PAGE else _ALIGNMENT
        offset = -(-end // alignment) * alignment
        end = offset + size
        placed.append((offset, constant))
        tensor = _header(constant, name)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    proto = export_proto(model, write_tensor)
    with ExitStack() as files:
        # Exited in reverse order: the data file is renamed before the model that refers to it.
        file = files.enter_context(_atomic(path))
        data = files.enter_context(_atomic(path.with_name(location))) if placed else None
        try:
            _write(file, proto.SerializeToString())
        except ValueError as e:
            raise ModelWriteError(f"model `{model.name}` has more than 2 GB without its external data: {e}") from e
        for offset, constant in placed:
            assert data is not None
            data.seek(offset)
            _write(data, _raw(constant))


def _header(constant: Constant, name: str) -> onnx.TensorProto:
    """The tensor without its data."""
    return onnx.TensorProto(name=name, data_type=constant.element_type.onnx, dims=constant.shape)


def _raw(constant: Constant) -> Any:
    """The constant's bytes; data that was loaded only for this is released again."""
    was_loaded = constant.is_loaded
    data = tensor_to_raw(constant.data)
    if not was_loaded:
        constant.release()
    return data


def _write(file: BinaryIO, data: Any) -> None:
    """Write all of `data`, since a raw stream may write only a part at a time."""
    view = memoryview(data).cast("B")
    while view:
        try:
            written = file.write(view)
        except (OSError, ValueError) as e:
            raise ModelWriteError(f"the model cannot be written: {e}") from e
        view = view[len(view) if written is None else written :]


@contextmanager
def _checked_stream(stream: BinaryIO) -> Iterator[BinaryIO]:
    if not hasattr(stream, "write"):
        raise ModelWriteError(f"cannot write a model to {type(stream).__name__}; pass a path or a binary stream")
    yield stream


@contextmanager
def _atomic(path: Path) -> Iterator[BinaryIO]:
    """A temporary file that is renamed to `path` if the block succeeds, and deleted if it raises."""
    try:
        with complete_file(path) as file:
            yield file
    except (OSError, ValueError) as e:
        raise ModelWriteError(f"`{path}` cannot be written: {why_not_opened(path, e)}") from e
