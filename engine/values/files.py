"""Values in files: .npy, .npz, ONNX's .pb, folders of .pb files as ONNX lays out its test data, images, raw bytes.

The path "-" is standard input, whose first bytes determine which of these it is. A .pb file contains a `TensorProto`,
`SequenceProto`, `OptionalProto` or `MapProto`, so it can store every type. A folder contains `input_0.pb` and so on, or
`output_0.pb`, by position. A .npz archive contains tensors by name. Only .pb files need the onnx package.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError, ModelError
from engine.ir import TensorType, ValueType
from engine.values.images import RAW_SUFFIXES, SUFFIXES, PixelScale, image_value, raw_value

Array = NDArray[Any]
Types: TypeAlias = Mapping[str, ValueType]
"""The inputs or outputs of a model, in order."""
Kind: TypeAlias = Literal["input", "output"]

_FORMS: Final = "expected .npy, .npz, .pb, an image, .bin with raw bytes, or a folder of .pb files"
STANDARD_INPUT: Final = "-"
_NUMPY_MAGIC, _ZIP_MAGIC = b"\x93NUMPY", b"PK\x03\x04"
_IMAGE_MAGICS: Final = (b"\x89PNG", b"\xff\xd8\xff", b"BM", b"GIF8", b"RIFF", b"II*\0", b"MM\0*", b"P5", b"P6")


def read_values(
    path: str | os.PathLike[str], types: Types, kind: Kind, scale: PixelScale | None = None
) -> dict[str, Any]:
    """Read inputs or outputs from `path`, by name.

    A .npz archive names them; a folder has them by position; a .npy file is for a model with only one, and so is
    a .pb file unless it contains a name, an image, and raw bytes. `scale` is for images. Raises `InputError`.
    """
    path = Path(path)
    if str(path) == STANDARD_INPUT:
        return _read_standard_input(types, kind, scale)
    if path.is_dir():
        return _read_folder(path, types, kind)
    if path.suffix == ".npz":
        return _read_archive(path, types, kind)
    return dict([_read_single(path, types, kind, scale)])


def read_value(path: str | os.PathLike[str], value_type: ValueType, scale: PixelScale | None = None) -> Any:
    """Read a value of type `value_type` from a .npy or .pb file, an image, or raw bytes. Raises `InputError`."""
    path = Path(path)
    if str(path) == STANDARD_INPUT:
        return _from_content(_standard_input(), value_type, scale)
    if path.suffix == ".npy":
        return _typed(_load_numpy(path), value_type)
    if path.suffix == ".pb":
        return _read_proto(path, value_type)[1]
    if path.suffix.lower() in SUFFIXES:
        return image_value(_content(path), str(path), value_type, scale)
    if path.suffix.lower() in RAW_SUFFIXES:
        return raw_value(_content(path), str(path), value_type)
    raise InputError(f"{path}: cannot read a value from it; expected .npy, .pb, an image, or .bin with raw bytes")


def write_values(path: str | os.PathLike[str], values: Mapping[str, Any], types: Types, kind: Kind) -> list[Path]:
    """Write values to a .npz archive if `path` ends with .npz, otherwise to a folder of .pb files; return the files.

    Raises `InputError` for values that an archive cannot hold, and `OSError`.
    """
    path = Path(path)
    if path.suffix == ".npz":
        _write_archive(path, values)
        return [path]
    if path.suffix:
        raise InputError(f"{path}: expected a .npz archive, or a folder, whose name has no suffix")
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: it is a file; expected a folder or a .npz archive")
    from engine.onnx.value_protos import to_proto

    contents = {
        path / f"{kind}_{position}.pb": to_proto(value, types[name], name).SerializeToString()
        for position, (name, value) in enumerate(values.items())
    }
    path.mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        with _replaced(file) as temporary:
            temporary.write_bytes(content)
    return list(contents)


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`, and rename the file to `path` if the block succeeds."""
    temporary = path.with_name(f".{os.urandom(16).hex()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from e
    finally:
        temporary.unlink(missing_ok=True)


# -- numpy's formats --------------------------------------------------------------------------------------


def _read_archive(path: Path, types: Types, kind: Kind) -> dict[str, Any]:
    return _of_archive(_load_numpy(path), str(path), types, kind)


def _of_archive(arrays: Mapping[str, Any], path: str, types: Types, kind: Kind) -> dict[str, Any]:
    for name in arrays:
        if name not in types:
            listed = ", ".join(types) or "none"
            raise InputError(f"{path}: it holds {name!r}, which is not an {kind} of the model; {kind}s: {listed}")
    return {name: _typed(array, types[name]) for name, array in arrays.items()}


def _load_numpy(path: Path | BytesIO) -> Any:
    """An array, or the arrays of an archive by name. Pickled objects are rejected, because they can run code."""
    suffix = path.suffix if isinstance(path, Path) else ""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray) or suffix == ".npy":
            return loaded
        with loaded:
            return dict(loaded)
    except Exception as e:  # numpy and zipfile raise many kinds, such as MemoryError for a forged header
        where = path if isinstance(path, Path) else _WHERE
        raise InputError(f"{where}: cannot be read as {suffix or 'a'} file: {_reason(e)}") from e


def _typed(array: Any, value_type: ValueType) -> Any:
    """`array`, viewed as its ml_dtypes type (such as bfloat16) if numpy has loaded it as plain bytes."""
    if not isinstance(value_type, TensorType) or not isinstance(array, np.ndarray):
        return array
    dtype = value_type.element_type.numpy
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    return array


def _write_archive(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(value, np.ndarray):
            raise InputError(f"{path}: `{name}` is a {type(value).__name__}, which .npz cannot hold; write to a folder")
    # Not np.savez, which would take an output called "file" as its own argument.
    with _replaced(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, value in values.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, _storable(value), allow_pickle=False)


def _storable(array: Array) -> Array:
    if array.dtype.kind in "OT":
        return array.astype(str)
    # numpy cannot read the type names that it writes for ml_dtypes; `_typed` restores these types from plain bytes.
    return array.view(np.dtype((np.void, array.dtype.itemsize))) if array.dtype.isbuiltin == 2 else array


# -- standard input, and content without a name ------------------------------------------------------------

_WHERE: Final = "standard input"


def _standard_input() -> bytes:
    try:
        content = sys.stdin.buffer.read()
    except (OSError, ValueError, AttributeError) as e:  # closed, or replaced by a stream of text
        raise InputError(f"{_WHERE}: it cannot be read: {e}") from e
    if not content:
        raise InputError(f"{_WHERE}: it is empty; expected the value of an input")
    return content


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise InputError(f"{path}: {_reason(e)}") from e


def _read_standard_input(types: Types, kind: Kind, scale: PixelScale | None) -> dict[str, Any]:
    content = _standard_input()
    if content.startswith(_ZIP_MAGIC):
        return _of_archive(_load_numpy(BytesIO(content)), _WHERE, types, kind)
    if len(types) != 1:
        raise InputError(
            f"{_WHERE}: its {kind} is unknown; write NAME=-, where NAME is one of {', '.join(types) or 'none'}"
        )
    ((name, value_type),) = types.items()
    return {name: _from_content(content, value_type, scale)}


def _from_content(content: bytes, value_type: ValueType, scale: PixelScale | None) -> Any:
    """A value from bytes, by their beginning: .npy, an image; otherwise raw bytes if the size fits, or .pb."""
    if content.startswith(_NUMPY_MAGIC):
        return _typed(_load_numpy(BytesIO(content)), value_type)
    if content.startswith(_IMAGE_MAGICS):
        return image_value(content, _WHERE, value_type, scale)
    try:
        return raw_value(content, _WHERE, value_type)
    except InputError as not_raw:
        try:
            from engine.onnx.value_protos import from_proto, message

            proto = message(value_type)
            proto.ParseFromString(content)
            return from_proto(proto)
        except Exception:
            raise not_raw from None


# -- ONNX's format ----------------------------------------------------------------------------------------


def _read_single(path: Path, types: Types, kind: Kind, scale: PixelScale | None) -> tuple[str, Any]:
    only = next(iter(types)) if len(types) == 1 else None
    if path.suffix == ".pb":
        name, _ = _read_proto(path, None)
        name = name if name in types else only or name
        if name in types:
            return name, read_value(path, types[name])
    elif path.suffix != ".npy" and path.suffix.lower() not in (*SUFFIXES, *RAW_SUFFIXES):
        raise InputError(f"{path}: cannot read values from it; {_FORMS}")
    elif only is not None:
        return only, read_value(path, types[only], scale)
    raise InputError(
        f"{path}: its {kind} is unknown; write NAME={path}, where NAME is one of {', '.join(types) or 'none'}"
    )


def _read_folder(path: Path, types: Types, kind: Kind) -> dict[str, Any]:
    pattern = re.compile(rf"{kind}_(\d+)\.pb")
    found = {int(match[1]): file for file in path.iterdir() if (match := pattern.fullmatch(file.name))}
    if not found:
        raise InputError(f"{path}: there is no {kind}_0.pb in this folder")
    names = list(types)
    if max(found) >= len(names):
        raise InputError(f"{found[max(found)]}: the model has {len(names)} {kind}s: {', '.join(names) or 'none'}")
    return {names[position]: read_value(file, types[names[position]]) for position, file in sorted(found.items())}


def _read_proto(path: Path, value_type: ValueType | None) -> tuple[str, Any]:
    """Name and value; only the name if `value_type` is None."""
    from engine.onnx.value_protos import from_proto, message

    proto = message(value_type)
    try:
        proto.ParseFromString(path.read_bytes())
        return proto.name, None if value_type is None else from_proto(proto)
    except (OSError, ModelError) as e:
        raise InputError(f"{path}: {_reason(e)}") from e
    except Exception as e:  # protobuf's DecodeError; protobuf comes with onnx and is not a dependency of ours
        raise InputError(f"{path}: it is not a valid {type(proto).__name__}: {e}") from e


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
