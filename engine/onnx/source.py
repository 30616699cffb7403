"""Opens the source of a model (a path, bytes, a stream or a proto) as one buffer."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final, cast

from engine.errors import ModelReadError
from engine.files import ModelSource, position_of, why_not_opened
from engine.onnx.wire import Buffer
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

_OTHER_FORMATS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x93EBLOB\r\n", "a blob, a network that is compiled already; load it with Core.import_model"),
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself; fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint or a Keras file; export it to ONNX first"),
    (b"\x89HDF", "an HDF5 file, such as Keras writes; convert it to ONNX first"),
    (b"\x80\x02", "a Python pickle, such as PyTorch writes; export it to ONNX first"),
    (b"<", "an XML or HTML file, not an ONNX model"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """The bytes of a model.

    Attributes:
        data: all of them; for a file, a read-only mapping that exists as long as it is referred to.
        path: the file; None if there is none, and so no folder for external data.
        label: the model's name in messages.
        status: what `os.fstat` says of the file; None if there is none.
    """

    data: Buffer
    path: Path | None
    label: str
    status: os.stat_result | None = None


def open_model(source: ModelSource) -> OpenedModel:
    """`source` as one buffer, without reading a file or copying bytes. Raises `ModelReadError`."""
    if isinstance(source, (str, os.PathLike)):
        path = _as_path(source)
        label = f"model `{path}`"
        data, status = map_with_status(path, label)
        return OpenedModel(data, path, label, status)
    if isinstance(source, bytes):
        return OpenedModel(_checked(source), None, "the model")
    if isinstance(source, (bytearray, memoryview)):
        return OpenedModel(_checked(_as_bytes(source)), None, "the model")
    if isinstance(source, onnx.ModelProto):
        return OpenedModel(_serialized(source), None, "the model")
    if hasattr(source, "read"):
        return OpenedModel(_read_all(cast("BinaryIO", source)), None, "the model")
    raise ModelReadError(
        f"cannot read a model from {type(source).__name__}; pass a path, bytes, a binary stream or an onnx.ModelProto"
    )


def map_file(path: Path, label: str) -> memoryview:
    """The content of a regular file, mapped read-only. Raises `ModelReadError`, also for an empty file.

    The file must not change while a model read from it exists: truncating a mapped file kills the process.
    """
    return map_with_status(path, label)[0]


def map_with_status(path: Path, label: str) -> tuple[memoryview, os.stat_result]:
    """Like `map_file`, with what `os.fstat` says of the file that is mapped."""
    try:
        # Without O_NONBLOCK, opening a named pipe waits for its other end, perhaps forever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as e:
        raise ModelReadError(f"{label} cannot be opened: {why_not_opened(path, e)}") from e
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise ModelReadError(f"{label} is a directory; pass the path of the .onnx file in it")
        if not stat.S_ISREG(status.st_mode):
            raise ModelReadError(f"{label} is not a regular file; open it and pass the stream")
        if not status.st_size:
            raise ModelReadError(f"{label} is empty")
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)), status
    except OSError as e:
        raise ModelReadError(f"{label} cannot be mapped: {e.strerror or e}") from e
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def describe_other_format(data: Buffer) -> str | None:
    """The description of `data` if it begins like a well-known format other than ONNX."""
    head = bytes(data[:64])
    if head.startswith(b"<") and b"<net " in head:
        return "an OpenVINO IR; export the model that it was made from to ONNX (docs/models.md)"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= len(data) - 8:
        return "a safetensors file, which has weights but no graph; pass it as `weights` beside the ONNX model"
    for magic, description in _OTHER_FORMATS:
        if head.startswith(magic):
            return description
    if head[4:8] == b"TFL3":
        return "a TensorFlow Lite model; convert it to ONNX first, for example by tf2onnx (docs/models.md)"
    return None


def _as_path(source: str | os.PathLike[str]) -> Path:
    text = os.fsdecode(source)
    if not text:
        raise ModelReadError("the model's path is empty")
    return Path(text)


def _as_bytes(source: bytearray | memoryview) -> Buffer:
    if isinstance(source, bytearray):
        return bytes(source)
    try:
        return source.cast("B")
    except TypeError as e:
        raise ModelReadError(f"the model's memoryview is not contiguous: {e}; pass bytes(view)") from e


def _serialized(proto: onnx.ModelProto) -> bytes:
    try:
        data: bytes = proto.SerializeToString()
    except Exception as e:  # upb raises several kinds, none of them public
        raise ModelReadError(f"the ModelProto cannot be serialized: {e}; a model above 2 GB is read by its path") from e
    return data


def _read_all(stream: BinaryIO) -> bytes:
    try:
        data: object = stream.read()
    except Exception as e:  # any exception: a damaged archive, a broken connection, a user's own class
        reason = str(e) or type(e).__name__
        raise ModelReadError(f"the model's stream cannot be read: {reason}") from e
    if not isinstance(data, bytes):
        raise ModelReadError(
            f"the model's stream gives {type(data).__name__}, expected bytes; open the file in binary mode"
        )
    if not data and (position := position_of(stream)):
        raise ModelReadError(f"the model's stream is at its end, byte {position}; call seek(0) on it first")
    return _checked(data)  # type: ignore[return-value]


def _checked(data: Buffer) -> Buffer:
    if not len(data):
        raise ModelReadError("the model is empty: 0 bytes")
    return data
