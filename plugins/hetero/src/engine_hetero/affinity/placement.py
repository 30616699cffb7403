"""Placement of operations on devices: from users' choices, the devices' answers, and their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from engine.errors import UnsupportedError
from engine.plugin_api import QueryResult, Support, SupportLevel
from engine_hetero.query.model_graph import Ints, ModelGraph

UNPLACED: Final = -1
REFUSED, REFERENCE, NATIVE = 0, 1, 2
_RANKS: Final = {
    SupportLevel.REFUSED: REFUSED,
    SupportLevel.REFERENCE: REFERENCE,
    SupportLevel.NATIVE: NATIVE,
}
_MAX_LISTED: Final = 20


@dataclass(frozen=True)
class Placement:
    """A device for every node of a graph.

    Attributes:
        claims: the devices' answers.
        affinity: (N,) index of the device that runs each node.
        sources: (N,) the origin of the choice: "user", "priority", "measured", or "atom" for a node that follows its
            atom.
        atoms: (N,) nodes with the same number stay together; -1 for nodes without an atom.
    """

    claims: Claims
    affinity: Ints
    sources: tuple[str, ...]
    atoms: Ints


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
    def of(cls, graph: ModelGraph, devices: Sequence[str], answers: Sequence[QueryResult]) -> Claims:
        """Convert answers by name to arrays by node number; names that are not in the graph are ignored."""
        ranks = [[_RANKS[answer[name].level] for name in graph.names] for answer in answers]
        levels = np.array(ranks, np.int64).reshape(len(devices), len(graph))
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


class UnplaceableError(UnsupportedError):
    """Nodes that no device runs: `reasons` by node number, naming each queried device."""

    def __init__(self, message: str, reasons: Mapping[int, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


Choose: TypeAlias = Callable[[Ints], Ints]
"""From (D, N) levels, the device of each node: one whose level is not REFUSED."""


def place_by_priority(claims: Claims, stated: Ints) -> Placement:
    """Every node on the first device that runs it natively, else the first that evaluates it; users' choices are kept.

    Args:
        stated: (N,) the device chosen by the user, or `UNPLACED`.

    Raises `UnplaceableError` naming every node that no device runs, with each device's reason.
    """
    return settle(claims, stated, lambda levels: np.argmax(levels, axis=0).astype(np.int64), "priority")


def settle(claims: Claims, stated: Ints, choose: Choose, source: str) -> Placement:
    """Place with `choose` repeatedly until no atom is torn, that is, partly on the device that needs all of it.

    A device loses an atom if a user put a part of it on another device. Otherwise the whole atom moves to the device.
    Every round removes choices, so it terminates. Raises like `place_by_priority`.
    """
    levels = claims.levels.copy()
    for device in range(len(claims.devices)):
        levels[device, (stated != UNPLACED) & (stated != device)] = REFUSED
    moved = np.zeros(len(claims.graph), bool)
    while True:
        _require_placeable(claims, levels, stated)
        affinity = choose(levels)
        torn = _torn_atoms(claims, affinity)
        if not torn:
            break
        for device, atom in torn:
            if (levels[device, atom] != REFUSED).all():
                moved[atom] |= affinity[atom] != device
                levels[np.ix_(np.arange(len(levels)) != device, atom)] = REFUSED
            else:
                levels[device, atom] = REFUSED
    sources = tuple(
        "user" if device != UNPLACED else "atom" if follows else source
        for device, follows in zip(stated, moved, strict=True)
    )
    return Placement(claims, affinity, sources, _atom_numbers(claims, affinity))


def _torn_atoms(claims: Claims, affinity: Ints) -> list[tuple[int, Ints]]:
    """The atoms that are only partly on the device that needs all of them."""
    torn = []
    for device, atoms in enumerate(claims.atoms):
        for atom in atoms:
            inside = affinity[atom] == device
            if inside.any() and not inside.all():
                torn.append((device, atom))
    return torn


def _atom_numbers(claims: Claims, affinity: Ints) -> Ints:
    """(N,) one number for each atom of the device that it is on; atoms of one device share no node."""
    numbers = np.full(len(claims.graph), -1, np.int64)
    count = 0
    for device, atoms in enumerate(claims.atoms):
        for atom in atoms:
            if (affinity[atom] == device).all():
                numbers[atom] = count
                count += 1
    return numbers


def _require_placeable(claims: Claims, levels: Ints, stated: Ints) -> None:
    unplaced = np.flatnonzero((levels == REFUSED).all(axis=0)).tolist()
    if not unplaced:
        return
    reasons = {number: _why_unplaceable(claims, number, int(stated[number])) for number in unplaced}
    lines = []
    for number, reason in list(reasons.items())[:_MAX_LISTED]:
        node = claims.graph.nodes[number]
        lines.append(f"  {node.op_type} `{node.friendly_name}`: {reason}")
    if (rest := len(unplaced) - len(lines)) > 0:
        lines.append(f"  and {rest} more")
    raise UnplaceableError(
        f"{len(unplaced)} of {len(claims.graph)} nodes of `{claims.graph.model.name}` cannot be placed on "
        f"{', '.join(claims.devices)}:\n" + "\n".join(lines),
        reasons,
    )


def _why_unplaceable(claims: Claims, number: int, stated: int) -> str:
    asked = [stated] if stated != UNPLACED else range(len(claims.devices))
    where = f"affinity {claims.devices[stated]}; " if stated != UNPLACED else ""
    return where + "; ".join(f"{claims.devices[device]}: {claims.reason(device, number)}" for device in asked)
