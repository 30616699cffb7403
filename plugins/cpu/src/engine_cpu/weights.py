"""`WeightStore`: the constants of a network in the formats of kernels, each made once and shared by all its plans."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import BlobFormatError
from engine.ir import Constant, Model, Output
from engine.ir.types import TensorType
from engine.native import empty_aligned

Array = np.ndarray[Any, np.dtype[Any]]

_IDENTITY: Final = "engine_cpu.weight"


class WeightStore:
    """Packed arrays by key, and the plain data of constants. Used by one thread at a time."""

    def __init__(self, isa: str, load: Callable[[str], memoryview] | None = None, names: Sequence[str] = ()) -> None:
        self.isa = isa
        self.packed: dict[str, Array] = {}
        self.read_plainly: set[str] = set()
        """The identities of constants that some step reads as they are."""
        self._load = load
        self._stored = frozenset(names)

    def key(self, sources: Sequence[Output], recipe: str) -> str:
        """The name of what `recipe` makes of constants: the same in the process that exports and that imports."""
        return f"{'+'.join(_identity(source.node) for source in sources)}|{recipe}"

    def get(self, key: str, sources: Sequence[Output], make: Callable[[], Array]) -> Array:
        """The array of `key`, made where it is not there yet; aligned to 64 bytes."""
        array = self.packed.get(key)
        if array is None:
            if self._load is not None and key in self._stored:
                array = _aligned(np.frombuffer(self._load(key), np.uint8))
            else:
                array = _aligned(make())
                for source in sources:
                    assert isinstance(source.node, Constant)
                    source.node.release()
            self.packed[key] = array
        return array

    def data(self, constant: Constant) -> Array:
        """The data of a constant, as it is."""
        self.read_plainly.add(_identity(constant))
        return constant.data


def mark_weights(model: Model) -> None:
    """Give the constants of a compiled graph identities, which clones keep."""
    number = 0
    for node in model.ordered_nodes():
        if isinstance(node, Constant):
            node.rt_info[_IDENTITY] = f"w{number}"
            number += 1


def is_plain(node: Constant, read: set[str]) -> bool:
    """True where the data of a marked constant is among those read as they are."""
    return _identity(node) in read


def _identity(node: object) -> str:
    assert isinstance(node, Constant)
    known = node.rt_info.get(_IDENTITY)
    if known is not None:
        return str(known)
    digest = hashlib.sha256(repr((node.element_type.name, node.shape)).encode())
    digest.update(np.ascontiguousarray(node.data).tobytes())
    return digest.hexdigest()[:24]


def _aligned(array: Array) -> Array:
    if array.flags.c_contiguous and array.ctypes.data % 64 == 0:
        return array
    block = empty_aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    block[...] = array
    return block


def absent_weight(name: str, value_type: TensorType) -> Callable[[], Array]:
    """What a constant whose data a blob leaves out, since only its packed form is used, does when it is read."""

    def load() -> Array:
        raise BlobFormatError(f"weight {name} ({value_type}) is in the blob only as packed for its kernel")

    return load


def packed_sections(store: WeightStore) -> Mapping[str, Array]:
    """What to export."""
    return store.packed
