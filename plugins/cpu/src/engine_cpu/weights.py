"""`WeightStore`: the constants of a network in kernel formats, each made once and shared by all its plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from engine.digest import sha256
from engine.ir import Constant, Model, Output
from engine.native import empty_aligned

Array = np.ndarray[Any, np.dtype[Any]]

_IDENTITY: Final = "engine_cpu.weight"


FORMATS: Final = "3"
"""To be incremented whenever a kernel's packed weight format, or the choice of formats, changes.

Blobs contain packed weights, and would be misread by another version.
"""


class WeightStore:
    """Packed arrays by key, and the plain data of constants. Used by one thread at a time."""

    def __init__(self, isa: str, load: Callable[[str], memoryview] | None = None, names: Sequence[str] = ()) -> None:
        self.isa = isa
        self.packed: dict[str, Array] = {}
        self._read_plainly: set[str] = set()
        self._packed_from: set[str] = set()
        self._is_making = False
        self._load = load
        self._stored = frozenset(names)

    def key(self, sources: Sequence[Output], recipe: str) -> str:
        """The key of the result of `recipe` on constants: the same in the exporting and the importing process."""
        return f"{'+'.join(_identity(source.node) for source in sources)}|{recipe}"

    def get(self, key: str, sources: Sequence[Output], make: Callable[[], Array]) -> Array:
        """The array of `key`, made if missing; aligned to 64 bytes."""
        self._packed_from.update(_identity(source.node) for source in sources)
        array = self.packed.get(key)
        if array is None:
            if self._load is not None and key in self._stored:
                array = _aligned(np.frombuffer(self._load(key), np.uint8))
            else:
                array = _aligned(self._made(make))
                for source in sources:
                    assert isinstance(source.node, Constant)
                    source.node.release()
            self.packed[key] = array
        return array

    def data(self, constant: Constant) -> Array:
        """The plain data of a constant."""
        if not self._is_making:
            self._read_plainly.add(_identity(constant))
        return constant.data

    def _made(self, make: Callable[[], Array]) -> Array:
        """The result of `make`; its sources can be released once the result is stored."""
        outer, self._is_making = self._is_making, True
        try:
            return make()
        finally:
            self._is_making = outer

    def is_only_packed(self, constant: Constant) -> bool:
        """True if the data of a constant is read only in packed form."""
        identity = _identity(constant)
        return identity in self._packed_from and identity not in self._read_plainly


def mark_weights(model: Model) -> None:
    """Give the constants of a compiled graph identities, which clones keep."""
    number = 0
    for node in model.ordered_nodes():
        if isinstance(node, Constant):
            node.rt_info[_IDENTITY] = f"w{number}"
            number += 1


def _identity(node: object) -> str:
    assert isinstance(node, Constant)
    known = node.rt_info.get(_IDENTITY)
    if known is not None:
        return str(known)
    digest = sha256(repr((node.element_type.name, node.shape)).encode())
    digest.update(np.ascontiguousarray(node.data).tobytes())
    return digest.hexdigest()[:24]


def _aligned(array: Array) -> Array:
    if array.flags.c_contiguous and array.ctypes.data % 64 == 0:
        return array
    block = empty_aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    block[...] = array
    return block
