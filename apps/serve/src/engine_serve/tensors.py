"""Converts the protocol's tensors to numpy arrays, and back."""

from __future__ import annotations

import struct
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from kserve import InferInput, InferOutput, InferRequest
from kserve.protocol.infer_type import deserialize_bytes_tensor
from kserve.utils.numpy_codec import from_np_dtype, to_np_dtype
from numpy.typing import NDArray

from engine.errors import InputError, RepositoryError, TooLargeError
from engine.plugin_api import Port
from engine_serve.shared_tensors import RegionOutput
from engine_serve.unicode import is_unicode

Array = NDArray[Any]

_BYTES: Final = "BYTES"


def datatype_of(port: Port) -> str:
    """The protocol's name of an element type. Raises `RepositoryError` if the protocol has none."""
    known = "ml_dtypes" not in type(port.dtype.type).__module__ and port.dtype.type.__module__ == "numpy"
    name = from_np_dtype(port.dtype) if known else None
    if name is None:
        raise RepositoryError(
            f"`{port.name}` is {port.element_type}, which KServe's server does not carry; convert it in the model, for "
            "example with steps of preprocessing (`engine compile --preprocess`)"
        )
    return str(name)


def described(ports: Sequence[Port]) -> list[dict[str, Any]]:
    """The ports for the metadata of a model: lengths that are not fixed are -1, and so is an unknown rank."""
    return [{"name": port.name, "datatype": datatype_of(port), "shape": _lengths(port)} for port in ports]


def _lengths(port: Port) -> list[int]:
    if port.shape.rank.is_dynamic:
        return [-1]
    return [dim.min if dim.is_static else -1 for dim in port.shape]


def input_arrays(request: InferRequest, ports: Sequence[Port], fixed: Container[str] = ()) -> dict[str, Array]:
    """The arrays of a request by name; binary tensors become views of its bytes.

    Raises `InputError` for a name that the model has no input of, or that is an initializer (`fixed`), a tensor that is
    given twice, another element type than the input's, and data that do not fit the shape or the type. Shapes are
    checked by the network.
    """
    known = {port.name: port for port in ports}
    arrays: dict[str, Array] = {}
    for tensor in request.inputs:
        if tensor.name in fixed:
            raise InputError(f"`{tensor.name}` is an initializer of the model: a server cannot give it another value")
        if tensor.name not in known:
            raise InputError(f"there is no input {tensor.name!r:.80}; the model's are {', '.join(known) or 'none'}")
        if tensor.name in arrays:
            raise InputError(f"input `{tensor.name}` is given twice")
        expected = datatype_of(known[tensor.name])
        if tensor.datatype != expected:
            raise InputError(f"input `{tensor.name}` has datatype {tensor.datatype!r:.20}; expected {expected}")
        arrays[tensor.name] = array_of(tensor)
    return arrays


def array_of(tensor: InferInput) -> Array:
    """The array of a tensor. Raises `InputError` if its data do not fit its shape or its datatype."""
    shape = tensor.shape
    if not all(type(length) is int and 0 <= length < 1 << 62 for length in shape):
        raise InputError(f"input `{tensor.name}` has shape {shape!r:.80}; expected lengths of 0 or more")
    raw = tensor._raw_data
    flat = _from_bytes(tensor, raw) if raw is not None else _from_list(tensor)
    try:
        return flat.reshape(shape)
    except ValueError:
        raise InputError(f"input `{tensor.name}` has {flat.size} elements, and shape {shape}; they differ") from None


def _from_bytes(tensor: InferInput, raw: Any) -> Array:
    if tensor.datatype == _BYTES:
        try:
            return _texts(tensor.name, deserialize_bytes_tensor(raw))
        except struct.error as e:
            raise InputError(f"the data of input `{tensor.name}` end within a text: {e}") from None
    dtype = np.dtype(to_np_dtype(tensor.datatype))
    if len(raw) % dtype.itemsize:
        raise InputError(f"input `{tensor.name}` has {len(raw)} bytes; expected a multiple of {dtype.itemsize}")
    return np.frombuffer(raw, dtype)


def _from_list(tensor: InferInput) -> Array:
    """From the numbers of JSON or of a message: exactly, so that no value becomes another one."""
    data = tensor.data if tensor.data is not None else []
    if tensor.datatype == _BYTES:
        return _texts(tensor.name, np.array(data, dtype=object).reshape(-1))
    dtype = np.dtype(to_np_dtype(tensor.datatype))
    if dtype.kind == "f" and type(data) is list and set(map(type, data)) == {float}:  # most requests
        return _narrowed(tensor, np.fromiter(data, np.float64, len(data)), dtype)
    try:
        given = np.array(data)
    except (ValueError, OverflowError):
        given = np.empty(1, object)
    values = given.reshape(-1)
    if not values.size:
        return np.empty(0, dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = values.dtype.kind in "iu" and limits.min <= values.min() and values.max() <= limits.max
    else:
        fits = values.dtype.kind in ("b" if dtype.kind == "b" else "iuf")
    if fits and dtype.kind != "b" and isinstance(data, list):  # among numbers, numpy reads true as 1
        fits = not _has_booleans(data, given.ndim)
    if not fits:
        what = "true and false only" if dtype.kind == "b" else f"numbers that {tensor.datatype} can hold"
        raise InputError(f"the data of input `{tensor.name}` are not {what}")
    return _narrowed(tensor, values, dtype)


def _narrowed(tensor: InferInput, values: Array, dtype: np.dtype[Any]) -> Array:
    """The numbers as the tensor's type. Raises `InputError` for those that are too large."""
    with np.errstate(over="ignore"):
        found = values.astype(dtype)
    if dtype.kind == "f" and not np.isfinite(found).all() and np.any(np.isinf(found) & np.isfinite(values)):
        raise InputError(f"the data of input `{tensor.name}` have numbers that are too large for {tensor.datatype}")
    return found


def _has_booleans(data: Iterable[Any], axes: int) -> bool:
    """Whether one of the elements of nested lists is true or false."""
    for _ in range(axes - 1):
        data = chain.from_iterable(data)
    return bool in set(map(type, data))


def _texts(name: str, values: Array) -> Array:
    try:
        texts = [each.decode() if isinstance(each, bytes) else each for each in values]
    except UnicodeDecodeError as e:
        raise InputError(f"input `{name}` is not UTF-8: {e}") from None
    if not all(isinstance(each, str) for each in texts):
        raise InputError(f"the data of input `{name}` are not texts")
    if not all(is_unicode(each) for each in texts):
        raise InputError(f"the data of input `{name}` have a half of a surrogate pair, which is not a character")
    found = np.empty(len(texts), object)
    found[:] = texts
    return found


def bytes_of(arrays: Mapping[str, Array]) -> int:
    """The bytes that arrays take in memory; text arrays include their objects."""
    texts = (array for array in arrays.values() if array.dtype == object)
    return sum(array.nbytes for array in arrays.values()) + sum(sys.getsizeof(text) for a in texts for text in a.flat)


def output_tensors(result: Mapping[str, Any], request: InferRequest, most_bytes: int) -> list[InferOutput]:
    """The outputs that a request asks for: all, if it names none.

    Those that it asks for in shared memory are written there, when all others are made. Raises `InputError` for one
    that does not exist, or does not fit its memory, and `TooLargeError` if they have more bytes in the answer and in
    shared memory than `most_bytes`, before any of it is made.
    """
    asked = {output.name: output for output in request.request_outputs or ()}
    for name in asked:
        if name not in result:
            raise InputError(f"there is no output {name!r:.80}; the model's are {', '.join(result)}")
    values = {name: np.asarray(result[name]) for name in asked or result}
    size = 0
    for name, value in values.items():
        binary = asked[name].binary_data if name in asked else request.use_binary_outputs
        binary = binary or request.from_grpc or isinstance(asked.get(name), RegionOutput)
        size += bytes_of({name: value}) if binary else _text_bytes(value)
    if size > most_bytes:
        raise TooLargeError(
            f"the answer would have about {size} bytes, and the server sends at most {most_bytes} (--max-answer); ask "
            "for fewer rows, for fewer outputs by `outputs`, or for binary tensors"
        )
    tensors, shared = [], []
    for name, found in values.items():
        value = np.ascontiguousarray(found).reshape(found.shape)
        output = asked.get(name)
        if isinstance(output, RegionOutput):
            described, data = output.tensor(value, str(from_np_dtype(value.dtype)))
            tensors.append(described)
            shared.append((output.span, data))
            continue
        tensor = InferOutput(name, list(value.shape), from_np_dtype(value.dtype), data=value)
        if request.from_grpc:  # KServe's conversion to its message takes bytes, not an array
            tensor.set_data_from_numpy(tensor.data, binary_data=True)
        tensors.append(tensor)
    for span, data in shared:
        span.write(data)
    return tensors


def _text_bytes(value: Array) -> int:
    """About the most bytes of an array as JSON: its numbers with a comma each; of texts, without escapes."""
    if value.dtype == object:
        return sum(len(text) + 3 for text in value.flat)
    return value.size * {"f": 3 * value.itemsize + 4, "b": 6}.get(value.dtype.kind, 5 * value.itemsize // 2 + 3)
