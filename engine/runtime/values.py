"""Checks of a request's inputs and outputs: no array is cast, and copies are made only if necessary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError, InputError, ModelError
from engine.ir import ElementType, MapType, OptionalType, SequenceType, TensorType, ValueType, string, undefined
from engine.runtime.growing import GrowingArray
from engine.runtime.numbers import array_of_numbers
from engine.runtime.port import Port
from engine.runtime.remote import RemoteContext, RemoteTensor, refusal

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = Any
"""A tensor: numpy array or `RemoteTensor`; a sequence: list of values; an optional: a value or None; a map: dict."""

_REMEMBERED_SHAPES = 64
_NUMBERS = (bool, int, float, complex, str, list, tuple)


class _Mismatch(Exception):
    """Why a value does not fit, without the name of the port."""


class PortCheck:
    """Checks the values of one port. Caches admitted shapes, so that the usual check is a lookup.

    `where` begins every message ("CPU: input `x`"). Mismatches raise `error`. Thread-safe.

    Attributes:
        dtype: the numpy type of its arrays; None for strings and for values that are not tensors.
        context: the context whose remote tensors it admits; None admits none.
    """

    __slots__ = ("_error", "_fitting", "_may_grow", "_takes_numbers", "_where", "context", "dtype", "port")

    def __init__(
        self, port: Port, where: str, error: type[EngineError] = InputError, *, may_grow: bool = False
    ) -> None:
        self.port = port
        self._may_grow = may_grow
        self._where = where
        self._error = error
        self._takes_numbers = error is InputError  # a device gives arrays
        self._fitting: set[tuple[int, ...]] = set()
        self.context: RemoteContext | None = None
        is_plain = isinstance(port.type, TensorType) and port.type.element_type not in (string, undefined)
        self.dtype = port.element_type.numpy if is_plain else None

    def admit(self, value: Value) -> Value:
        """Return `value` in the form that stages read: C-contiguous aligned numpy arrays of the port's type and shape.

        Arrays of this form, DLPack tensors in host memory, and remote tensors are not copied. With `may_grow`, the
        value may be a `GrowingArray`, which is returned as it is.
        """
        if self._may_grow and type(value) is GrowingArray:
            self._guarded(lambda: self._check_tensor(value))
            return value
        if type(value) is np.ndarray and value.dtype is self.dtype and value.shape in self._fitting:
            flags = value.flags
            if flags.c_contiguous and flags.aligned:
                return value
        return self._guarded(lambda: self._admit_any(value))

    def has_admitted(self, shape: tuple[int, ...]) -> bool:
        """Whether this shape was admitted before, so that it need not be checked again."""
        return shape in self._fitting

    def admit_output(self, array: object) -> Array | RemoteTensor:
        """Return the tensor that a user provides for an output; it may be strided, and must be writable."""
        admitted: Array | RemoteTensor = self._guarded(lambda: self._admit_output(array))
        return admitted

    def _admit_output(self, value: object) -> Array | RemoteTensor:
        if isinstance(value, RemoteTensor):
            self._check_remote(value)
            if not value.is_writable:
                raise _Mismatch("the remote tensor is read-only; pass a writable one")
            return value
        array = value if isinstance(value, np.ndarray) else _from_dlpack(value)
        if not array.flags.writeable:
            raise _Mismatch("the array is read-only; pass a writable one")
        self._check_tensor(array)
        return array

    def _guarded(self, admit: Callable[[], Value]) -> Value:
        try:
            return admit()
        except _Mismatch as e:
            reason = str(e)
        raise self._error(f"{self._where}: {reason}")

    def _check_remote(self, tensor: RemoteTensor) -> None:
        if reason := refusal(tensor, self.context):
            raise _Mismatch(reason)
        self._check_tensor(tensor)

    def _admit_any(self, value: Value) -> Value:
        if isinstance(value, RemoteTensor):
            self._check_remote(value)
            return value
        if self.dtype is None and not isinstance(self.port.type, TensorType):
            return _admit(value, self.port.type, self._takes_numbers)
        array = _as_array(value, self.port.element_type, self._takes_numbers)
        self._check_tensor(array)
        return array

    def _check_tensor(self, array: Array | GrowingArray | RemoteTensor) -> None:
        if self.dtype is not None and array.dtype == self.dtype and array.shape in self._fitting:
            return
        if not isinstance(self.port.type, TensorType):
            raise _Mismatch(f"only a tensor can be set here; {self.port.name} is {self.port.type}")
        _check_tensor(array, self.port.type)
        if len(self._fitting) >= _REMEMBERED_SHAPES:
            self._fitting.clear()
        self._fitting.add(array.shape)


def is_copy(admitted: Value, given: Value) -> bool:
    """Whether `admitted`, which `PortCheck.admit` returned for `given`, is a copy, independent of changes to it."""
    if isinstance(given, np.ndarray):
        return not np.may_share_memory(admitted, given)
    if hasattr(given, "__dlpack__"):
        return bool(admitted.flags.owndata)
    return isinstance(given, (list, tuple, Mapping))


def _admit(value: Value, value_type: ValueType | None, takes_numbers: bool) -> Value:
    match value_type:
        case TensorType():
            array = _as_array(value, value_type.element_type, takes_numbers)
            _check_tensor(array, value_type)
            return array
        case SequenceType():
            if not isinstance(value, (list, tuple)):
                raise _Mismatch(f"a sequence must be a list of values; got {type(value).__name__}")
            return [
                _admit_member(element, value_type.element, f"[{i}]", takes_numbers) for i, element in enumerate(value)
            ]
        case OptionalType():
            return None if value is None else _admit(value, value_type.element, takes_numbers)
        case MapType():
            if not isinstance(value, Mapping):
                raise _Mismatch(f"a map must be a dict; got {type(value).__name__}")
            return dict(value)
        case None:
            return value
    raise _Mismatch(f"values of type {value_type} are not supported; use a dense tensor")


def _admit_member(value: Value, value_type: ValueType | None, position: str, takes_numbers: bool) -> Value:
    try:
        return _admit(value, value_type, takes_numbers)
    except _Mismatch as e:
        raise _Mismatch(f"{position}: {e}") from None


def _as_array(value: object, element_type: ElementType, takes_numbers: bool) -> Array:
    array = value if isinstance(value, np.ndarray) else _imported(value, element_type, takes_numbers)
    # The first use of numpy.ma imports it, which takes a megabyte and milliseconds of the first inference.
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise _Mismatch("a masked array would lose its mask; fill it first")
    if element_type is string:
        return _as_strings(array)
    # Subclasses become plain arrays; only strided or unaligned data is copied.
    return np.require(np.asarray(array), requirements=["C", "A"])


def _imported(value: object, element_type: ElementType, takes_numbers: bool) -> Array:
    if isinstance(value, np.generic) or (element_type is string and isinstance(value, str)):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    if takes_numbers and isinstance(value, _NUMBERS) and element_type is not undefined:
        try:
            return array_of_numbers(value, element_type)
        except ModelError as e:
            raise _Mismatch(f"the {type(value).__name__} is not an array of {element_type}: {e}") from e
    dtype = "object" if element_type is string else f"np.{element_type.numpy}"
    raise _Mismatch(f"expected an array, got {type(value).__name__}; use np.asarray(value, dtype={dtype})")


def _requires_grad(value: object) -> bool:
    return getattr(value, "requires_grad", False) is True


def _from_dlpack(value: Any) -> Array:
    if not hasattr(value, "__dlpack__"):
        raise _Mismatch(f"expected a numpy array or DLPack tensor, got {type(value).__name__}")
    try:
        return np.from_dlpack(value)
    except Exception as e:
        kind = type(value).__name__
        if _requires_grad(value):
            raise _Mismatch(f"the {kind} requires a gradient; pass {kind.lower()}.detach()") from e
        raise _Mismatch(f"the {kind} cannot be read through DLPack ({e}); copy it to host memory first") from e


def _as_strings(array: Array) -> Array:
    if array.dtype.kind in "UT":
        return array.astype(object)
    if array.dtype.kind != "O":
        raise _Mismatch(f"element type is {array.dtype}, expected strings (dtype object or str)")
    for element in array.flat:
        if not isinstance(element, str):
            raise _Mismatch(f"it holds a {type(element).__name__}, expected only str")
    return np.ascontiguousarray(array).reshape(array.shape)


def _check_tensor(array: Array | GrowingArray | RemoteTensor, expected: TensorType) -> None:
    dtype = expected.element_type.numpy
    if expected.element_type is not undefined and array.dtype != dtype:
        shown = "str" if expected.element_type is string else dtype
        raise _Mismatch(f"element type is {array.dtype}, expected {shown}; values are not cast implicitly")
    if expected.shape.accepts(array.shape):
        return
    if expected.shape.rank.is_static and len(expected.shape) != len(array.shape):
        raise _Mismatch(f"rank is {len(array.shape)} {array.shape}, expected {len(expected.shape)} {expected.shape}")
    lengths = zip(array.shape, expected.shape.dims, strict=True)
    wrong = next((i for i, (length, dim) in enumerate(lengths) if not dim.accepts(length)), None)
    if wrong is None:
        raise _Mismatch(f"shape is {array.shape}, expected {expected.shape}; equal symbols have different lengths")
    got, dim = array.shape[wrong], expected.shape[wrong]
    raise _Mismatch(f"shape is {array.shape}, expected {expected.shape}; dimension {wrong} is {got}, expected {dim}")
