"""Converts tensors between numpy arrays and ONNX's storage: raw bytes (narrow types packed), typed fields, strings."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelError, ModelReadError, OutOfMemoryError
from engine.ir import ElementType, i8, i16, string, u8, u16
from engine.limits import check_bytes, current_budget, shown_bytes
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

Array = NDArray[Any]
Buffer = bytes | bytearray | memoryview | Array
_STRIP: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class SparseTensor:
    """A constant tensor in coordinate form: `values` [nnz]; `indices` [nnz] (linear) or [nnz, rank]; the shape."""

    values: Array
    indices: Array
    shape: tuple[int, ...]

    def to_dense(self) -> Array:
        """The tensor as an array; elements without a value are zero (or the empty string)."""
        fill: Any = "" if self.values.dtype == object else 0
        dense = np.full(self.shape, fill, dtype=self.values.dtype)
        if self.indices.ndim == 2:
            dense[tuple(self.indices.T)] = self.values
        else:
            dense.reshape(-1)[self.indices] = self.values
        return dense


def dense_within_budget(sparse: SparseTensor, name: str) -> Array:
    """`to_dense` of the constant `name`, whose bytes count against the budget of the compilation while they are used.

    A sparse tensor of few bytes may take any number in dense form. Raises `OutOfMemoryError` beyond the budget, and if
    the memory is not available.
    """
    nbytes, budget = math.prod(sparse.shape) * sparse.values.dtype.itemsize, current_budget()
    what = f"sparse constant `{name}` {list(sparse.shape)}"
    if nbytes > (left := max(0, budget.bytes_left)):
        raise OutOfMemoryError(
            f"{what} takes {shown_bytes(nbytes)} in dense form, and {shown_bytes(left)} are left of what this "
            "compilation may compute in advance; raise MAX_FOLDED_BYTES, or store the tensor in dense form"
        )
    check_bytes(nbytes, what)
    dense = sparse.to_dense()
    budget.spend(nbytes, 0)
    weakref.finalize(dense, budget.spend, -nbytes, 0)
    return dense


def transposed_matrix(matrix: Array) -> Array:
    """A contiguous copy of the transposed matrix; in strips, which is several times as fast for large ones."""
    rows, columns = matrix.shape
    result = np.empty((columns, rows), matrix.dtype)
    for start in range(0, rows, _STRIP):
        result[:, start : start + _STRIP] = matrix[start : start + _STRIP].T
    return result


def tensor_from_raw(data: Buffer, element_type: ElementType, shape: Sequence[int], name: str = "") -> Array:
    """The tensor in `data`, which is in ONNX's raw little-endian storage; a view of `data` unless it is packed.

    Raises `ModelReadError` if the length of `data` does not match `shape`, and for strings.
    """
    if element_type.bits == 0:
        raise ModelReadError(f"tensor `{name}`: {element_type} tensors cannot have raw_data; expected string_data")
    flat = np.frombuffer(data, dtype=np.uint8)
    count = _count(shape, name)
    expected = element_type.byte_size(count)
    if flat.size != expected:
        raise ModelReadError(
            f"tensor `{name}`: {element_type}{list(shape)} takes {expected} bytes of raw data, got {flat.size}"
        )
    if element_type.is_packed:
        flat = _unpack(flat, element_type.bits, count)
    return flat.view(element_type.numpy).reshape(tuple(shape))


def tensor_to_raw(array: Array) -> Buffer:
    """The bytes of `array` in ONNX's raw little-endian storage; a view if the array is contiguous.

    Raises `ModelError` for strings.
    """
    element_type = ElementType.from_numpy(array.dtype)
    if element_type.bits == 0:
        raise ModelError(f"a {element_type} tensor cannot be stored as raw bytes")
    if element_type.is_packed:
        codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return _pack(codes, element_type.bits)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False) if array.dtype.isbuiltin == 1 else array
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


def tensor_from_proto(proto: onnx.TensorProto) -> Array:
    """The array of a `TensorProto`: strings as an object array of str, narrow types through ml_dtypes.

    The array may be a read-only view of the proto's bytes. Raises `ModelReadError` for a malformed proto, and for
    external data, because the model's folder is not known here.
    """
    name, shape = proto.name, tuple(proto.dims)
    element_type = ElementType.from_onnx(proto.data_type)
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        raise ModelReadError(f"tensor `{name}` has external data and was read without its model's folder")
    if proto.HasField("segment"):
        raise ModelReadError(f"tensor `{name}` is stored in segments, which ONNX does not define")
    if proto.HasField("raw_data"):
        return tensor_from_raw(proto.raw_data, element_type, shape, name)
    if element_type is string:
        return _strings(proto.string_data, shape, name)
    if element_type.bits in (2, 4):
        return tensor_from_raw(_bytes(proto.int32_data, element_type, shape, name), element_type, shape, name)
    _count(shape, name)
    if proto.int32_data:
        check_range(np.asarray(proto.int32_data, np.int32), element_type, name)
    try:
        return onnx.numpy_helper.to_array(proto)
    except (ValueError, TypeError, OverflowError) as e:
        raise ModelReadError(f"tensor `{name}`: cannot be read as {element_type}{list(shape)}: {e}") from e


def check_range(values: Array, element_type: ElementType, name: str) -> None:
    """Raise `ModelReadError` if an int32 of int32_data is not a value of an integer type of 8 or 16 bits."""
    if element_type not in (u8, i8, u16, i16) or not values.size:
        return
    limits = np.iinfo(element_type.numpy)
    for value in (values.min(), values.max()):
        if not limits.min <= value <= limits.max:
            raise ModelReadError(
                f"tensor `{name}`: int32_data has {value}; {element_type} has {limits.min} to {limits.max}"
            )


def tensor_to_proto(array: Array, name: str = "") -> onnx.TensorProto:
    """`array` as a `TensorProto` with raw data (strings: UTF-8 `string_data`)."""
    element_type = ElementType.from_numpy(array.dtype)
    proto = onnx.TensorProto(name=name, data_type=element_type.onnx, dims=array.shape)
    if element_type is string:
        proto.string_data.extend(encode_text(item) for item in array.reshape(-1).tolist())
    else:
        proto.raw_data = bytes(tensor_to_raw(array))
    return proto


def sparse_from_proto(proto: onnx.SparseTensorProto) -> SparseTensor:
    """The `SparseTensor` of a proto. Raises `ModelReadError` if its parts do not fit together."""
    values, indices = tensor_from_proto(proto.values), tensor_from_proto(proto.indices)
    shape, name = tuple(proto.dims), proto.values.name
    size = _count(shape, name)
    expected = [(values.size,), (values.size, len(shape))]
    if values.ndim != 1 or indices.dtype != np.int64 or indices.shape not in expected:
        raise ModelReadError(
            f"sparse tensor `{name}`: {values.size} values and {indices.dtype} indices of shape {indices.shape} do not "
            f"fit; expected int64 indices of shape {expected[0]} or {expected[1]}"
        )
    bounds: Any = size if indices.ndim == 1 else np.asarray(shape)
    if indices.size and ((indices < 0) | (indices >= bounds)).any():
        raise ModelReadError(f"sparse tensor `{name}`: an index lies outside of shape {list(shape)}")
    return SparseTensor(values, indices, shape)


def sparse_to_proto(value: SparseTensor, name: str = "") -> onnx.SparseTensorProto:
    """Encode `value` as ONNX does: its nonzero values and their indices, as two dense tensors."""
    return onnx.SparseTensorProto(
        values=tensor_to_proto(value.values, name), indices=tensor_to_proto(value.indices), dims=value.shape
    )


def encode_text(text: str | bytes) -> bytes:
    """UTF-8 bytes of `text`; restores bytes that `decode_text` could not decode."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def decode_text(data: bytes) -> str:
    """`data` as text; bytes that are not UTF-8 become surrogates, which `encode_text` converts back."""
    return data.decode("utf-8", "surrogateescape")


def _strings(items: Sequence[bytes], shape: tuple[int, ...], name: str) -> Array:
    if len(items) != _count(shape, name):
        raise ModelReadError(
            f"tensor `{name}`: string{list(shape)} takes {_count(shape, name)} items, got {len(items)}"
        )
    flat = np.empty(len(items), dtype=object)
    flat[:] = [decode_text(item) for item in items]
    return flat.reshape(shape)


def _bytes(items: Sequence[int], element_type: ElementType, shape: tuple[int, ...], name: str) -> bytes:
    """The bytes of packed elements; each item holds one byte."""
    expected = element_type.byte_size(_count(shape, name))
    if len(items) != expected:
        raise ModelReadError(
            f"tensor `{name}`: {element_type}{list(shape)} takes {expected} items of int32_data, each with "
            f"{8 // element_type.bits} elements; got {len(items)}"
        )
    wrong = next((item for item in items if not -128 <= item < 256), None)
    if wrong is not None:
        raise ModelReadError(f"tensor `{name}`: int32_data has {wrong}; expected bytes, since {element_type} is packed")
    return bytes(item & 255 for item in items)


def _count(shape: Sequence[int], name: str) -> int:
    if any(length < 0 for length in shape):
        raise ModelReadError(f"tensor `{name}`: shape {list(shape)} has a negative length")
    return math.prod(shape)


def _unpack(data: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """One code per byte, from packed codes of `bits` bits, least significant bits first."""
    if bits == 6:
        return np.packbits(
            np.unpackbits(data, count=6 * count, bitorder="little").reshape(-1, 6), axis=1, bitorder="little"
        ).reshape(-1)
    codes = np.empty((data.size, 8 // bits), dtype=np.uint8)
    for position in range(8 // bits):
        codes[:, position] = (data >> (bits * position)) & ((1 << bits) - 1)
    return codes.reshape(-1)[:count]


def _pack(codes: NDArray[np.uint8], bits: int) -> bytes:
    if bits == 6:
        spread = np.unpackbits(codes.reshape(-1, 1), axis=1, count=6, bitorder="little")
        return np.packbits(spread.reshape(-1), bitorder="little").tobytes()
    per_byte = 8 // bits
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, dtype=np.uint8)
    padded[: codes.size] = codes & ((1 << bits) - 1)
    packed = np.zeros(padded.size // per_byte, dtype=np.uint8)
    for position in range(per_byte):
        packed |= padded[position::per_byte] << (bits * position)
    return packed.tobytes()
