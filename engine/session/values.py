"""`OrtValue`, and the values of a run as requests take them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError, UnsupportedError
from engine.ir import TensorType, string
from engine.ir.element_type import ElementType
from engine.runtime import Port
from engine.session.arguments import element_text, type_text


class OrtValue:
    """A value on the host: a tensor that shares memory with its array, or another value of a model."""

    __slots__ = ("_type", "_value")

    def __init__(self, value: Any, type_name: str | None = None) -> None:
        self._value = value
        self._type = type_name or f"tensor({element_text(ElementType.from_numpy(value.dtype))})"

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: NDArray[Any], device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A tensor that is this array. Raises `UnsupportedError` for another device than "cpu"."""
        require_host(device_type)
        return OrtValue(np.require(numpy_obj, requirements=["C"]))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A tensor with undefined content. `element_type` is a numpy type, or a value of `TensorProto.DataType`."""
        require_host(device_type)
        return OrtValue(np.empty(tuple(shape), numpy_type(element_type)))

    def numpy(self) -> NDArray[Any]:
        """The array; not a copy. Raises `InputError` for a value that is not a tensor."""
        if not isinstance(self._value, np.ndarray):
            raise InputError(f"a value of type {self._type} is not an array; get it from the list that run() returns")
        return self._value

    def update_inplace(self, np_arr: NDArray[Any]) -> None:
        """Replace the content. Raises `InputError` unless type and shape equal this tensor's."""
        target = self.numpy()
        if (np_arr.dtype, np_arr.shape) != (target.dtype, target.shape):
            raise InputError(f"the array is {np_arr.dtype}{list(np_arr.shape)}, expected "
                             f"{target.dtype}{list(target.shape)}")  # fmt: skip
        np.copyto(target, np_arr)

    @property
    def value(self) -> Any:
        """The value as requests take it."""
        return self._value

    def shape(self) -> list[int]:
        """The shape of the tensor. Raises `InputError` if the value is not a tensor."""
        return list(self.numpy().shape)

    def data_type(self) -> str:
        """The type of the value as onnxruntime writes it, such as "tensor(float)"."""
        return self._type

    def element_type(self) -> int:
        """The element type of the tensor, as a number of `TensorProto.DataType`."""
        return ElementType.from_numpy(self.numpy().dtype).onnx

    def device_name(self) -> str:
        """ "cpu": values are in the host's memory."""
        return "cpu"

    def data_ptr(self) -> int:
        """The address of a tensor's first element."""
        return int(self.numpy().ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """The bytes of a tensor's elements."""
        return int(self.numpy().nbytes)

    def has_value(self) -> bool:
        """False for an optional that is absent."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Whether the value is a dense tensor, which `numpy` returns."""
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """Return False; provided because onnxruntime's values have the method."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether the value is a sequence of tensors, by its type."""
        return self._type.startswith("seq(tensor(")


def numpy_type(element_type: Any) -> np.dtype[Any]:
    """The numpy type for a numpy type, or for a value of `TensorProto.DataType`."""
    return ElementType.from_onnx(element_type).numpy if isinstance(element_type, int) else np.dtype(element_type)


def require_host(device_type: str) -> None:
    """Raise `UnsupportedError` unless the memory is the host's."""
    if device_type.lower() != "cpu":
        raise UnsupportedError(
            f"engine.session has tensors on the host only, not on {device_type!r}; use Core.create_context for tensors "
            "in a device's memory (docs/remote-tensors.md)"
        )


def array_at(address: int, element_type: Any, shape: Sequence[int]) -> NDArray[Any]:
    """The array in foreign memory, which must outlive it."""
    dtype = numpy_type(element_type)
    size = int(np.prod(tuple(shape), dtype=np.int64)) * dtype.itemsize
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return memory.view(dtype).reshape(tuple(shape))


def feeds_of(feed: Mapping[str, Any], ports: Mapping[str, Port]) -> Mapping[str, Any]:
    """Inputs as requests take them, which check them. Arrays are not copied."""
    if not isinstance(feed, Mapping):
        raise InputError(f"the inputs must be a mapping of names to values; got {type(feed).__name__}")
    if all(type(value) is np.ndarray and value.dtype.kind != "S" for value in feed.values()):
        return feed
    return {name: _as_value(value, ports.get(name)) for name, value in feed.items()}


def _as_value(value: Any, port: Port | None) -> Any:
    if isinstance(value, OrtValue):
        return value.value
    if port is None or not isinstance(port.type, TensorType):
        return value
    if isinstance(value, list):
        return _array_of(value, port.name, port.type.element_type)
    if isinstance(value, np.ndarray) and value.dtype.kind == "S" and port.type.element_type is string:
        try:
            return np.char.decode(value, "utf-8")
        except UnicodeDecodeError as e:
            raise InputError(f"input `{port.name}`: the bytes of a text are not UTF-8: {e}") from e
    return value


def _array_of(value: list[Any], name: str, element_type: ElementType) -> NDArray[Any]:
    """Numbers, or texts, of a list, as onnxruntime also takes them. Raises `InputError` if one would change."""
    try:
        given = np.array(value, object if element_type is string else None)
        if given.size and given.dtype.kind in "fc" and not (element_type.is_real or element_type.is_complex):
            raise ValueError(f"it has numbers such as {given.flat[0]}")
        with np.errstate(over="raise"):
            return given if element_type is string else np.array(value, element_type.numpy)
    except (ArithmeticError, TypeError, ValueError) as e:
        raise InputError(f"input `{name}`: the list is not an array of {element_type}: {e}") from e


def wrapped(value: Any, port: Port) -> OrtValue:
    """The value of output `port` as an `OrtValue`."""
    return OrtValue(value, type_text(port.type))
