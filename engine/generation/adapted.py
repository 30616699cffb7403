"""`AdapterInputs`: the inputs of a network for the adapters of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from engine.errors import AdapterError, InputError
from engine.generation.adapter import Adapter, Array, distinct
from engine.ir.adapter_inputs import ADAPTER_MASK, LORA_A, LORA_B, matching_modules
from engine.plugin_api import Signature
from engine.startup import dataclass

_PACKED = ("q_proj", "k_proj", "v_proj")
"""The modules that adapt the parts of a joined `qkv_proj`."""
_FEW = 12
_KEPT = 4


@dataclass(frozen=True, slots=True)
class _Module:
    """A module that the network adapts: the widths of its input and its result, and its type."""

    rows: int
    columns: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """The matrices of some adapters side by side, by the names of the inputs, and the ranks of each adapter."""

    adapters: list[Adapter]
    matrices: dict[str, Array]
    places: list[slice]


class AdapterInputs:
    """Makes the inputs that `engine.passes.MakeAdaptable` added to a model. Thread-safe.

    One adapter whose modules all have the same rank is used in place. Several are copied side by side, linear in their
    bytes; the copies for the last four combinations are kept.
    """

    def __init__(self, signature: Signature) -> None:
        self._network = signature.network
        self._modules: dict[str, _Module] = {}
        self._kept: list[_Joined] = []
        """Of the last batches, the last one at the end."""
        ports = {port.name: port for port in signature.inputs}
        self.names = adapter_inputs(signature)
        self._least, self._bound = 0, None  # of the ranks of a batch
        if not self.names:
            return
        self._least, self._bound = ports[ADAPTER_MASK].shape[1].min, ports[ADAPTER_MASK].shape[1].max
        for name in self.names:
            path = name.removesuffix(LORA_A)
            if name.endswith(LORA_A):
                a, b = ports[name], ports[path + LORA_B]
                self._modules[path] = _Module(a.shape[0].get_length(), b.shape[1].get_length(), a.dtype)

    def fits(self, adapters: Sequence[Adapter | None]) -> bool:
        """Whether the ranks of these adapters are few enough for one batch."""
        return self._bound is None or sum(adapter.rank for adapter in distinct(adapters)) <= self._bound

    def check(self, adapters: Sequence[Adapter | None]) -> None:
        """Raise `AdapterError` unless the network can apply these adapters in one batch."""
        found = distinct(adapters)
        for adapter in found:
            self._fit(adapter)
        if not self.fits(found):
            raise AdapterError(
                f"{self._network}: the adapters {', '.join(f'`{each.name}`' for each in found)} have ranks of "
                f"{sum(each.rank for each in found)} together; the network takes {self._bound}: "
                "MakeAdaptable(rank=...), or apply fewer at a time"
            )

    def inputs(self, adapters: Sequence[Adapter | None]) -> dict[str, Array]:
        """The inputs for a batch, by name: the adapter of each sequence, or None. Raises what `check` raises."""
        if not self._modules:
            self.check(adapters)
            return {}
        found = sorted(distinct(adapters), key=id)  # the same matrices, whatever the order of the sequences
        kept = [each for each in self._kept if each.adapters == found]
        if not kept:
            self.check(found)
            kept = [_Joined(found, *self._joined(found))]
        self._kept = [*(each for each in self._kept if each is not kept[0]), kept[0]][-_KEPT:]
        places = {id(each): place for each, place in zip(found, kept[0].places, strict=True)}
        mask = np.zeros((len(adapters), self._width(found)), bool)
        for row, adapter in enumerate(adapters):
            if adapter is not None:
                mask[row, places[id(adapter)]] = True
        return {**kept[0].matrices, ADAPTER_MASK: mask}

    def _width(self, adapters: Sequence[Adapter]) -> int:
        """The ranks of all adapters, or the number that a reshaped network is fixed to."""
        return max(sum(adapter.rank for adapter in adapters), self._least)

    def _joined(self, adapters: Sequence[Adapter]) -> tuple[dict[str, Array], list[slice]]:
        """The matrices of all adapters side by side, with zeros where one does not have a module."""
        ends = np.cumsum([0, *(adapter.rank for adapter in adapters)]).tolist()
        places = [slice(*each) for each in pairwise(ends)]
        fitted, width = [self._fit(adapter) for adapter in adapters], self._width(adapters)
        made: dict[str, Array] = {}
        for path, module in self._modules.items():
            names = path + LORA_A, path + LORA_B
            if len(adapters) == 1 and path in fitted[0] and fitted[0][path][0].shape[1] == width:
                made |= dict(zip(names, map(np.ascontiguousarray, fitted[0][path]), strict=True))
                continue
            a = np.zeros((module.rows, width), module.dtype)
            b = np.zeros((width, module.columns), module.dtype)
            for pairs, place in zip(fitted, places, strict=True):
                if path in pairs:
                    used = slice(place.start, place.start + pairs[path][0].shape[1])
                    a[:, used], b[used] = pairs[path]
            made |= dict(zip(names, (a, b), strict=True))
        return made, places

    def _fit(self, adapter: Adapter) -> Mapping[str, tuple[Array, Array]]:
        """The matrices of an adapter by the network's modules. Raises `AdapterError` if one does not fit."""
        if not self._modules:
            raise AdapterError(
                f"{self._network} takes no adapters; run engine.passes.MakeAdaptable on the model before compiling it"
            )
        fitted: dict[str, tuple[Array, Array]] = {}
        for path, pair in adapter.modules.items():
            for known, matrices in self._placed(adapter, path, pair).items():
                if known in fitted:
                    raise AdapterError(
                        f"{self._network}: adapter `{adapter.name}` has several modules that are `{known}` here, such "
                        f"as `{path}`"
                    )
                fitted[known] = matrices
        return fitted

    def _placed(self, adapter: Adapter, path: str, pair: tuple[Array, Array]) -> dict[str, tuple[Array, Array]]:
        """The matrices of a module by the network's modules: its own, or the parts of a joined one."""
        found = matching_modules(path, self._modules)
        if not found and (parts := self._parts(path)):
            ends = np.cumsum([0, *(self._modules[part].columns for part in parts)]).tolist()
            if ends[-1] == pair[1].shape[1]:
                columns = zip(parts, pairwise(ends), strict=True)
                pairs = {part: (pair[0], pair[1][:, begin:end]) for part, (begin, end) in columns}
                return {part: self._checked(adapter, path, part, each) for part, each in pairs.items()}
        if len(found) != 1:
            reason = f"is any of `{'`, `'.join(found[:_FEW])}`" if found else "is not one that the network adapts"
            raise AdapterError(
                f"{self._network}: module `{path}` of adapter `{adapter.name}` {reason}; the network adapts "
                f"{', '.join([*self._modules][:_FEW])}{', ...' if len(self._modules) > _FEW else ''}: "
                "MakeAdaptable(targets) chooses the modules, and MakeAdaptable(names={...}) names them"
            )
        return {found[0]: self._checked(adapter, path, found[0], pair)}

    def _parts(self, path: str) -> list[str]:
        before, _, last = path.rpartition(".")
        if last != "qkv_proj":
            return []
        found = [matching_modules(f"{before}.{part}" if before else part, self._modules) for part in _PACKED]
        return [each[0] for each in found] if all(len(each) == 1 for each in found) else []

    def _checked(self, adapter: Adapter, path: str, known: str, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        module, (a, b) = self._modules[known], pair
        if (a.shape[0], b.shape[1]) != (module.rows, module.columns):
            raise AdapterError(
                f"{self._network}: module `{path}` of adapter `{adapter.name}` maps {a.shape[0]} values to "
                f"{b.shape[1]}; `{known}` of the network maps {module.rows} to {module.columns}: the adapter belongs "
                "to another model"
            )
        if module.dtype == a.dtype:
            return pair
        with np.errstate(over="ignore"):  # reported below
            made = a.astype(module.dtype), b.astype(module.dtype)
        if not all(np.isfinite(each.astype(np.float32)).all() for each in made):
            raise AdapterError(
                f"{self._network}: module `{path}` of adapter `{adapter.name}` has elements beyond the range of "
                f"{module.dtype}, the type of the model"
            )
        return made


def adapter_inputs(signature: Signature) -> frozenset[str]:
    """The names of the inputs of a network that adapters have; empty if it takes none."""
    names = {port.name for port in signature.inputs}
    if ADAPTER_MASK not in names:
        return frozenset()
    pairs = [(name, name.removesuffix(LORA_A) + LORA_B) for name in names if name.endswith(LORA_A)]
    return frozenset({ADAPTER_MASK, *(name for pair in pairs if pair[1] in names for name in pair)})


def checked_adapters(adapter: Adapter | Sequence[Adapter | None] | None) -> Adapter | list[Adapter | None] | None:
    """`adapter`, or a list of one for each sequence. Raises `InputError` for anything else."""
    if adapter is None or isinstance(adapter, Adapter):
        return adapter
    if isinstance(adapter, (str, bytes)) or not isinstance(adapter, Sequence):
        raise InputError(
            f"adapter is {adapter!r:.80}; expected an Adapter, as read_adapter returns it, a list, or None"
        )
    for each in adapter:
        if each is not None and not isinstance(each, Adapter):
            raise InputError(f"adapter has {each!r:.80}; expected an Adapter or None for each sequence")
    return list(adapter)
