"""Constants whose data stays in the file: views of it, or unpacked from it when they are read."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelError, ModelReadError
from engine.ir import (
    Constant,
    ElementType,
    PartialShape,
    TensorType,
    bf16,
    boolean,
    c64,
    c128,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from engine.ir.long_list import LongList
from engine.onnx.external_data import ExternalData
from engine.onnx.safetensors import Weights
from engine.onnx.skeleton import RAW_DATA, Skeleton
from engine.onnx.wire import Buffer, count_varints, decode_varints
from engine.ops.protos import SparseTensor, sparse_from_proto, tensor_from_proto, tensor_from_raw, tensor_to_proto
from engine.ops.tensors import check_range, dense_within_budget
from engine.startup.onnx_library import onnx

Array = NDArray[Any]

_P = TypeVar("_P", onnx.TensorProto, onnx.SparseTensorProto)
_T = TypeVar("_T")

_EXTERNAL: Final = onnx.TensorProto.EXTERNAL
_MAX_RANK: Final = 64  # numpy's
_MAX_DENSE_BYTES: Final = 1 << 31

_FLOAT_DATA, _INT32_DATA, _INT64_DATA, _DOUBLE_DATA, _UINT64_DATA = 4, 5, 7, 10, 11
_FIXED_FIELDS: Final = {_FLOAT_DATA: (f32, c64), _DOUBLE_DATA: (f64, c128)}
_VARINT_FIELDS: Final = {_INT64_DATA: (i64,), _UINT64_DATA: (u32, u64)}
# The content of one int32 of int32_data for each element type: its value, or the bits of one element or one byte.
_INT32_CODES: Final[dict[ElementType, Any]] = {
    i32: np.int32, i16: np.int16, u16: np.uint16, i8: np.int8, u8: np.uint8, boolean: np.bool_, f16: np.uint16,
    bf16: np.uint16,
}  # fmt: skip


class TensorStore(ABC):
    """Reads the tensors of one model. `content` finds the data of tensors that are not in the proto itself."""

    @abstractmethod
    def content(self, tensor: onnx.TensorProto, needed: int) -> tuple[int, Buffer]:
        """The content of a tensor's data field, preceded by the number of that field of `TensorProto`.

        `needed` is the tensor's size in bytes as raw data. Raises `ModelReadError`.
        """

    def long_list(self, tensor: onnx.TensorProto) -> LongList | None:
        """The list of an attribute that refers to it by this tensor; None if it is not such a reference."""
        return None

    def constant(self, tensor: onnx.TensorProto) -> Constant:
        """`tensor` as a constant with its name. Raises `ModelReadError`."""
        name = tensor.name
        if tensor.data_location != _EXTERNAL:
            return Constant(_checked(tensor_from_proto, tensor), friendly_name=name)
        shape, element_type = tuple(tensor.dims), _element_type(tensor)
        needed = _byte_size(name, element_type, shape)
        field, data = self.content(tensor, needed)
        if field == RAW_DATA and not element_type.is_packed:
            return Constant(tensor_from_raw(data, element_type, shape, name), friendly_name=name)
        load = _loader(name, element_type, shape, field, data)
        return Constant.lazy(TensorType(element_type, PartialShape(shape)), load, friendly_name=name)

    def array(self, tensor: onnx.TensorProto) -> Array:
        """`tensor` as an array. Raises `ModelReadError`."""
        if tensor.data_location != _EXTERNAL:
            return _checked(tensor_from_proto, tensor)
        return self.constant(tensor).data

    def sparse(self, tensor: onnx.SparseTensorProto) -> SparseTensor:
        """`tensor` in coordinate form. Raises `ModelReadError`."""
        parts = (tensor.values, tensor.indices)
        if any(part.data_location == _EXTERNAL for part in parts):
            values, indices = (tensor_to_proto(self.array(part), part.name) for part in parts)
            tensor = onnx.SparseTensorProto(values=values, indices=indices, dims=tensor.dims)
        return _checked(sparse_from_proto, tensor)

    def sparse_constant(self, tensor: onnx.SparseTensorProto) -> Constant:
        """A sparse initializer as a dense constant, filled when its data is read. Raises `ModelReadError`.

        Reading the data raises `OutOfMemoryError`; see `dense_within_budget`.
        """
        name, sparse = tensor.values.name, self.sparse(tensor)
        element_type = ElementType.from_numpy(sparse.values.dtype)
        needed = _byte_size(name, element_type, sparse.shape)
        if needed > _MAX_DENSE_BYTES or len(sparse.shape) > _MAX_RANK:
            raise ModelReadError(
                f"sparse tensor `{name}` of shape {list(sparse.shape)} takes {needed} bytes in dense form; "
                f"at most {_MAX_DENSE_BYTES} are allowed"
            )
        value_type = TensorType(element_type, PartialShape(sparse.shape))
        load = functools.partial(dense_within_budget, sparse, name)
        return Constant.lazy(value_type, load, friendly_name=name)


class FileTensors(TensorStore):
    """The tensors of a model that was read from a buffer: in the buffer itself, in files beside it, or in `weights`."""

    __slots__ = ("_buffer", "_external", "_skeleton", "_weights")

    def __init__(
        self, buffer: Buffer, skeleton: Skeleton, external: ExternalData, weights: Weights | None = None
    ) -> None:
        self._buffer = memoryview(buffer)
        self._skeleton = skeleton
        self._external = external
        self._weights = weights

    def content(self, tensor: onnx.TensorProto, needed: int) -> tuple[int, Buffer]:
        """See `TensorStore`."""
        span = self._skeleton.span_of(tensor)
        if span is None:
            given = None if self._weights is None else self._weights.content(tensor)
            if given is not None:
                return RAW_DATA, given
            return RAW_DATA, self._external.content(tensor, needed)
        return span.field, self._buffer[span.start : span.stop]

    def long_list(self, tensor: onnx.TensorProto) -> LongList | None:
        """See `TensorStore`."""
        return self._skeleton.list_of(tensor)


def check_tensor(tensor: onnx.TensorProto) -> None:
    """Reject negative lengths, and raw data of the wrong size, which ONNX's C++ does not check.

    Raises `ModelReadError`.
    """
    if tensor.dims and min(tensor.dims) < 0:
        raise ModelReadError(f"tensor `{tensor.name}`: shape {list(tensor.dims)} has a negative length")
    if tensor.HasField("raw_data"):
        element_type, shape = _element_type(tensor), tuple(tensor.dims)
        needed = element_type.byte_size(math.prod(shape))
        _expect(tensor.name, element_type, shape, len(tensor.raw_data), needed, "bytes")


def stored_type(tensor: onnx.TensorProto) -> TensorType:
    """The type of a tensor. Raises `ModelReadError` if it is not a valid type of stored tensors."""
    element_type, shape = _element_type(tensor), tuple(tensor.dims)
    _byte_size(tensor.name, element_type, shape)
    return TensorType(element_type, PartialShape(shape))


def _element_type(tensor: onnx.TensorProto) -> ElementType:
    try:
        return ElementType.from_onnx(tensor.data_type)
    except ModelError as e:
        raise ModelReadError(f"tensor `{tensor.name}`: {e}") from e


def _loader(name: str, element_type: ElementType, shape: tuple[int, ...], field: int, data: Buffer) -> Any:
    """A function that creates the array. The data is validated here, so that the function does not fail."""
    if field == RAW_DATA or element_type in _FIXED_FIELDS.get(field, ()):
        _expect(name, element_type, shape, len(data), element_type.byte_size(math.prod(shape)), "bytes")
        return functools.partial(tensor_from_raw, data, element_type, shape, name)
    count = math.prod(shape)
    if field == _INT32_DATA and element_type.is_packed:
        count = element_type.byte_size(count)
    fits = element_type in _VARINT_FIELDS.get(field, ()) or (
        field == _INT32_DATA and (element_type in _INT32_CODES or 0 < element_type.bits <= 8)
    )
    if not fits:
        raise ModelReadError(f"tensor `{name}`: {element_type} data is not stored in field {field} of a TensorProto")
    _expect(name, element_type, shape, count_varints(data), count, "integers")
    if field == _INT32_DATA and element_type in (u8, i8, u16, i16):
        check_range(decode_varints(data, np.dtype(np.int32)), element_type, name)
    return functools.partial(_from_varints, name, element_type, shape, data)


def _from_varints(name: str, element_type: ElementType, shape: tuple[int, ...], data: Buffer) -> Array:
    codes = _INT32_CODES.get(element_type)
    if codes is None:
        codes = np.uint8 if element_type.bits <= 8 else element_type.numpy
    return tensor_from_raw(decode_varints(data, np.dtype(codes)), element_type, shape, name)


def _expect(name: str, element_type: ElementType, shape: tuple[int, ...], got: int, needed: int, unit: str) -> None:
    if got != needed:
        raise ModelReadError(f"tensor `{name}`: {element_type}{list(shape)} takes {needed} {unit} of data, got {got}")


def _byte_size(name: str, element_type: ElementType, shape: tuple[int, ...]) -> int:
    if any(length < 0 for length in shape) or len(shape) > _MAX_RANK:
        raise ModelReadError(
            f"tensor `{name}` has shape {list(shape)[: _MAX_RANK + 1]}; "
            f"expected at most {_MAX_RANK} lengths, none negative"
        )
    if not element_type.bits:
        raise ModelReadError(f"tensor `{name}`: {element_type} tensors cannot have raw_data; expected string_data")
    return element_type.byte_size(math.prod(shape))


def _checked(read: Callable[[_P], _T], tensor: _P) -> _T:
    """`read(tensor)`; numpy's own errors (for 65 dimensions, for 2^63 elements) become `ModelReadError`."""
    try:
        return read(tensor)
    except (ValueError, OverflowError, MemoryError) as e:
        name = tensor.values.name if isinstance(tensor, onnx.SparseTensorProto) else tensor.name
        raise ModelReadError(f"tensor `{name}` cannot be read: {e}") from e
