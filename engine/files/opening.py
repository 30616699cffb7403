"""The places that models are read from, and the reasons why a file cannot be opened."""

from __future__ import annotations

import os
from typing import BinaryIO, Protocol, TypeAlias


def why_not_opened(path: str | os.PathLike[str], error: Exception) -> str:
    """Why a file cannot be opened or made, such as that its folder is missing, in words that do not repeat its path."""
    folder = os.path.dirname(os.path.abspath(os.fsdecode(path))) if isinstance(error, FileNotFoundError) else ""
    if folder and not os.path.isdir(folder):
        return f"folder {folder} does not exist"
    return getattr(error, "strerror", None) or str(error)


def position_of(stream: object) -> int:
    """The position of a stream that knows it, otherwise 0."""
    try:
        position = stream.tell()  # type: ignore[attr-defined]
    except Exception:  # a stream need not have one
        return 0
    return position if isinstance(position, int) else 0


class SerializableModel(Protocol):
    """An `onnx.ModelProto`, which this interface stands for so that naming it imports nothing."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - the name is protobuf's
        """Return the model as the bytes of an ONNX file."""


ModelSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | SerializableModel
"""Where a model is read from: a path (a str is always one), its bytes, a binary stream, or an `onnx.ModelProto`."""
