"""`WeightStore`: the constants of a network in kernel formats, each made once and shared by all its plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engine.files.digest import sha256
from engine.native import Packing, empty_aligned, run_packings

if TYPE_CHECKING:
    from engine.ir import Constant, Model, Output

Array = np.ndarray[Any, np.dtype[Any]]

_IDENTITY: Final = "engine_cpu.weight"


_MAX_WAITING: Final = 1 << 20
"""The bytes of sources that may wait to be packed: they are in memory until then."""


class OverLimit(Exception):
    """Packed weights take more than they may."""


class WeightLimit:
    """How many bytes packed weights may take.

    Beyond it, `OverLimit` is raised or, if it `counts_on`, further arrays have a size and no content: the network they
    are for can tell what it would take, and must not run.
    """

    def __init__(self, nbytes: int, *, counts_on: bool) -> None:
        self._left = nbytes
        self.counts_on = counts_on

    @property
    def is_exceeded(self) -> bool:
        """Whether arrays have no content."""
        return self._left < 0

    def add(self, nbytes: int) -> None:
        """Count an array. Raises `OverLimit`, and does not count it then."""
        if nbytes > self._left and not self.counts_on:
            raise OverLimit
        self._left -= nbytes


class WeightStore:
    """Packed arrays by key, and the plain data of constants. Used by one thread at a time.

    Arrays that kernels pack are filled by `finish`, many at a time. `is_repeatable`: the order of sums must not depend
    on other rows.
    """

    def __init__(
        self,
        isa: str,
        load: Callable[[str], memoryview] | None = None,
        names: Sequence[str] = (),
        limit: WeightLimit | None = None,
        *,
        is_repeatable: bool = False,
    ) -> None:
        self.isa, self.is_repeatable = isa, is_repeatable
        self.limit = limit
        self.packed: dict[str, Array] = {}
        self._read_plainly: set[str] = set()
        self._packed_from: set[str] = set()
        self._is_making = False
        self._waiting: dict[str, tuple[Packing, Sequence[Output]]] = {}
        self._waiting_for: set[Output] = set()
        self._waiting_bytes = 0
        self._load = load
        self._stored = frozenset(names)

    @property
    def nbytes(self) -> int:
        """The bytes of the packed arrays."""
        return sum(array.nbytes for array in list(self.packed.values()))

    def held(self, graph: Model) -> dict[str, int]:
        """The bytes of the packed arrays, by the operation that reads the constants that they are made from."""
        from engine.ir import Constant
        from engine.ir.walk import all_nodes

        readers = {
            _identity(node): next(iter(each.node.friendly_name for each in node.output(0).target_inputs), "")
            for node in all_nodes(graph)
            if isinstance(node, Constant) and _IDENTITY in node.rt_info
        }
        held: dict[str, int] = {}
        for key, array in self.packed.items():
            name = next((readers[each] for each in key.partition("|")[0].split("+") if each in readers), "")
            held[name] = held.get(name, 0) + array.nbytes
        held.pop("", None)
        return held

    def key(self, sources: Sequence[Output], recipe: str) -> str:
        """The key of the result of `recipe` on constants: the same in the exporting and the importing process."""
        return f"{'+'.join(_identity(source.node) for source in sources)}|{recipe}"

    def get(self, key: str, sources: Sequence[Output], make: Callable[[], Array | Packing]) -> Array:
        """The array of `key`, made if missing; aligned to 64 bytes. If `make` returns a `Packing`, see `finish`."""
        self._packed_from.update(_identity(source.node) for source in sources)
        array = self.packed.get(key)
        if array is None:
            if self._load is not None and key in self._stored:
                array = _aligned(np.frombuffer(self._load(key), np.uint8))
            else:
                made = self._made(make)
                array = made.packed if isinstance(made, Packing) else _aligned(made)
                if self.limit is not None:
                    self.limit.add(array.nbytes)
                if isinstance(made, Packing):
                    self._wait(key, made, sources)
                else:
                    _release([source for source in sources if source not in self._waiting_for])
            self.packed[key] = array
        return array

    def _wait(self, key: str, packing: Packing, sources: Sequence[Output]) -> None:
        self._waiting[key] = packing, sources
        self._waiting_for.update(sources)
        self._waiting_bytes += sum(array.nbytes for array in packing.inputs)
        if self._waiting_bytes > _MAX_WAITING:
            self.finish()

    def finish(self) -> None:
        """Fill the arrays that are not yet packed; to be called before any of them is read."""
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        self._waiting_for.clear()
        if self.limit is not None and self.limit.is_exceeded:
            return  # arrays that are not written take no memory
        try:
            run_packings([packing for packing, _ in waiting.values()])
        except BaseException:
            for key in waiting:  # the next program needs them filled
                self.packed.pop(key, None)
            raise
        for _, sources in waiting.values():
            _release(sources)

    def data(self, constant: Constant) -> Array:
        """The elements of a constant in plain layout, and note that a plan reads them."""
        if not self._is_making:
            self._read_plainly.add(_identity(constant))
        return constant.data

    def keep(self, graph: Model) -> None:
        """Have the constants of a graph kept in plain form: plans that are built during an inference may need them."""
        from engine.ir import Constant
        from engine.ir.walk import all_nodes

        self._read_plainly.update(_identity(node) for node in all_nodes(graph) if isinstance(node, Constant))

    def _made(self, make: Callable[[], Array | Packing]) -> Array | Packing:
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


def _release(sources: Sequence[Output]) -> None:
    from engine.ir import Constant

    for source in sources:
        assert isinstance(source.node, Constant)
        source.node.release()


def mark_weights(model: Model) -> None:
    """Give the constants of a compiled graph and of the bodies in it identities, which clones keep."""
    from engine.ir import Constant
    from engine.ir.walk import all_nodes

    number = 0
    for node in all_nodes(model):
        if isinstance(node, Constant):
            node.rt_info[_IDENTITY] = f"w{number}"
            number += 1


def _identity(node: object) -> str:
    from engine.ir import Constant

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
