"""The devices' answers about each operation of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from engine.plugin_api import CoreHandle, Model, QueryResult, Support, SupportLevel
from engine.startup import dataclass
from engine_hetero.device_list import DeviceList
from engine_hetero.query.model_graph import Ints, ModelGraph

REFUSED, REFERENCE, NATIVE = 0, 1, 2
_RANKS: Final = {
    SupportLevel.REFUSED: REFUSED,
    SupportLevel.REFERENCE: REFERENCE,
    SupportLevel.NATIVE: NATIVE,
}


@dataclass(frozen=True)
class Claims:
    """The devices' answers about a graph, as arrays.

    Attributes:
        devices: the device strings, best first.
        answers: the answer of each device.
        levels: (D, N) REFUSED, REFERENCE or NATIVE.
        atoms: for each device, the sets of nodes that it runs only together.
    """

    graph: ModelGraph
    devices: tuple[str, ...]
    answers: tuple[QueryResult, ...]
    levels: Ints
    atoms: tuple[tuple[Ints, ...], ...]

    @classmethod
    def asked(cls, core: CoreHandle, model: Model, devices: DeviceList) -> Claims:
        """Query each device about a canonical model. Raises the queries' errors."""
        answers = [core.query_model(model, name, devices.configs[name]) for name in devices.names]
        return cls._of_model(model, devices.names, answers)

    @classmethod
    def _of_model(cls, model: Model, devices: Sequence[str], answers: Sequence[QueryResult]) -> Claims:
        refused = {name for answer in answers for name in answer.at(SupportLevel.REFUSED)}
        return cls.of(ModelGraph.of(model, refused), devices, answers)

    @classmethod
    def of(cls, graph: ModelGraph, devices: Sequence[str], answers: Sequence[QueryResult]) -> Claims:
        """Convert answers by name to arrays by node number; names that are not in the graph are ignored."""
        ranks = [[_RANKS[answer[name].level] for name in graph.names] for answer in answers]
        levels = np.array(ranks, np.int64).reshape(len(devices), len(graph.names))
        numbers = {name: number for number, name in enumerate(graph.names)}
        atoms = []
        for answer in answers:
            found = [np.array(sorted(numbers[n] for n in atom if n in numbers), np.int64) for atom in answer.atoms]
            atoms.append(tuple(_disjoint(found)))
        return cls(graph, tuple(devices), tuple(answers), levels, tuple(atoms))

    def with_answers(self, device: int, supports: Mapping[str, Support]) -> Claims:
        """The claims with one device's answers about some nodes replaced; unknown names are ignored."""
        answers = list(self.answers)
        answers[device] = replace(answers[device], nodes={**answers[device].nodes, **supports})
        levels = self.levels.copy()
        for number, name in enumerate(self.graph.names):
            if name in supports:
                levels[device, number] = _RANKS[supports[name].level]
        return replace(self, answers=tuple(answers), levels=levels)

    def without(self, refused: Sequence[tuple[str, Mapping[str, Support]]]) -> Claims:
        """The claims after later refusals of some nodes by devices, which may change the graph: see `ModelGraph.of`."""
        answers = list(self.answers)
        for name, supports in refused:
            device = self.devices.index(name)
            answers[device] = replace(answers[device], nodes={**answers[device].nodes, **supports})
        return self._of_model(self.graph.model, self.devices, answers)

    def support(self, device: int, number: int) -> Support:
        """A device's answer about a node."""
        return self.answers[device][self.graph.names[number]]

    def reason(self, device: int, number: int) -> str:
        """Why a device cannot run a node."""
        support = self.support(device, number)
        if support.level is SupportLevel.REFUSED:
            return support.reason
        atom = next((a for a in self.atoms[device] if number in a), None)
        names = "" if atom is None else ", ".join(f"`{self.graph.names[n]}`" for n in atom if n != number)
        return f"supported only together with {names}, some of which are on other devices"


def _disjoint(atoms: Sequence[Ints]) -> list[Ints]:
    """Merge sets that share a node; drop sets of one node. Near-linear."""
    joined = list(range(len(atoms)))

    def group(atom: int) -> int:
        while joined[atom] != atom:
            joined[atom] = atom = joined[joined[atom]]
        return atom

    first: dict[int, int] = {}
    for number, atom in enumerate(atoms):
        for node in atom.tolist():
            joined[group(number)] = group(first.setdefault(node, number))
    members: dict[int, list[int]] = {}
    for node, number in first.items():
        members.setdefault(group(number), []).append(node)
    return [np.array(sorted(nodes), np.int64) for nodes in members.values() if len(nodes) > 1]
