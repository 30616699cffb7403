"""Where the tensors of an inference are in shared memory, and values of any type as descriptions and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import DeviceError, EngineError
from engine.ir import ElementType, TensorType, string, undefined
from engine.plugin_api import Port
from engine.startup import dataclass
from engine_isolated.memory import SharedMemory, aligned

LARGE: Final = 1 << 16
"""Outputs of as many bytes are not copied: the device writes them into memory that becomes the caller's array."""

HEAD: Final = 64
"""the first bytes of the memory: the number of the inference that the device has begun last, and nothing."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor is: in the memory of the channel or, if it is a large output, in the block of the inference."""

    element_type: str
    shape: tuple[int, ...]
    at: int
    is_in_block: bool = False

    def view(self, shared: SharedMemory) -> Array:
        """The tensor there. Raises `DeviceError` if it ends outside."""
        return shared.view(self.at, self.shape, ElementType.parse(self.element_type).numpy)

    def to_json(self) -> list[Any]:
        """A description for the other process."""
        return [self.element_type, self.shape, self.at, self.is_in_block]

    @classmethod
    def from_json(cls, value: Any) -> Place:
        """The place of `to_json`."""
        element_type, shape, at, is_in_block = value
        return cls(element_type, tuple(shape), at, is_in_block)


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all inputs, and of the outputs whose shapes are known before the inference.

    `size` is the number of bytes of the memory, `block_size` of the block.
    """

    inputs: tuple[Place, ...]
    outputs: tuple[Place | None, ...]
    size: int
    block_size: int

    @classmethod
    def of(cls, inputs: Sequence[Array], outputs: Sequence[tuple[ElementType, tuple[int, ...]] | None]) -> Layout:
        """The layout for these inputs, and for outputs of these types and shapes; None where they are not known."""
        at = [HEAD, 0]  # the ends of the memory and of the block

        def place(element_type: ElementType, shape: tuple[int, ...], nbytes: int, is_in_block: bool) -> Place:
            found = Place(element_type.name, shape, at[is_in_block], is_in_block)
            at[is_in_block] += aligned(nbytes)
            return found

        read = tuple(place(ElementType.from_numpy(each.dtype), each.shape, each.nbytes, False) for each in inputs)
        written: list[Place | None] = []
        for each in outputs:
            if each is None:
                written.append(None)
                continue
            element_type, shape = each
            nbytes = int(np.prod(shape, dtype=object)) * element_type.numpy.itemsize
            written.append(place(element_type, shape, nbytes, nbytes >= LARGE))
        return cls(read, tuple(written), *at)

    def to_json(self) -> dict[str, Any]:
        """A description for the other process."""
        return {
            "inputs": [each.to_json() for each in self.inputs],
            "outputs": [None if each is None else each.to_json() for each in self.outputs],
            "size": self.size,
            "block_size": self.block_size,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layout:
        """The layout of `to_json`."""
        return cls(
            tuple(map(Place.from_json, value["inputs"])),
            tuple(None if each is None else Place.from_json(each) for each in value["outputs"]),
            value["size"],
            value["block_size"],
        )


def is_plain(port: Port) -> bool:
    """Whether values of a port are tensors of numbers, which have a place in a layout."""
    return isinstance(port.type, TensorType) and port.element_type not in (string, undefined)


def begun_run(shared: SharedMemory) -> Array:
    """The number of the inference that was begun last, as an array of one element in the head of the memory."""
    return shared.view(0, (1,), np.dtype(np.uint64))


def known_shape(port: Port, lengths: Mapping[str, int]) -> tuple[ElementType, tuple[int, ...]] | None:
    """The type and shape of an output, from the lengths of the inputs' symbols; None if the device decides."""
    if not is_plain(port) or port.declared_of or not port.shape.rank.is_static:
        return None
    shape = [dim.min if dim.is_static else lengths.get(dim.symbol or "") for dim in port.shape]
    known = [length for length in shape if length is not None]
    return (port.element_type, tuple(known)) if len(known) == len(shape) else None


class Packing:
    """Values of any type as descriptions (JSON) and the bytes of their tensors, which `write` puts into memory.

    `start` is the first place, and `size` the end of the last one.
    """

    def __init__(self, start: int = 0) -> None:
        self.size = start
        self._parts: list[tuple[int, Array]] = []

    def described(self, value: Any) -> Any:
        """The description of a value; its tensors get the next places."""
        if value is None:
            return None
        if isinstance(value, list):
            return {"list": [self.described(each) for each in value]}
        if isinstance(value, Mapping):
            return {"map": [[_plain(key), _plain(each)] for key, each in value.items()]}
        array = np.asarray(value)
        element_type = ElementType.from_numpy(array.dtype)
        if element_type is string:
            return {"strings": [str(each) for each in array.ravel()], "shape": array.shape}
        place = Place(element_type.name, array.shape, self.size)
        self._parts.append((self.size, array))
        self.size += aligned(array.nbytes)
        return {"tensor": place.to_json()}

    def write(self, target: NDArray[np.uint8]) -> None:
        """Copy all tensors to their places."""
        for at, array in self._parts:
            target[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def unpacked(description: Any, view: Callable[[Place], Array]) -> Any:
    """The value of a description; `view` returns the tensor at a place. Raises `DeviceError` if it is malformed."""
    try:
        return _unpacked(description, view)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise DeviceError(f"the other process described a value in a malformed way: {e}") from e
    except EngineError:
        raise


def _unpacked(description: Any, view: Callable[[Place], Array]) -> Any:
    if description is None:
        return None
    ((kind, content),) = [item for item in description.items() if item[0] != "shape"]
    match kind:
        case "list":
            return [_unpacked(each, view) for each in content]
        case "map":
            return {key: value for key, value in content}  # noqa: C416  (JSON has no tuples)
        case "strings":
            array = np.empty(len(content), object)
            array[:] = content
            return array.reshape(description["shape"])
        case "tensor":
            return view(Place.from_json(content))
    raise DeviceError(f"the other process sent a value of an unknown kind: {kind!r:.80}")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
