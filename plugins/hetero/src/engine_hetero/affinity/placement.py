"""The device of each operation: from users' choices, the devices' answers, and their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np

from engine.errors import UnsupportedError
from engine.startup import dataclass
from engine_hetero.query.claims import REFUSED, Claims
from engine_hetero.query.model_graph import Ints

UNPLACED: Final = -1
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


class UnplaceableError(UnsupportedError):
    """Nodes that no device runs: `reasons` by node number in the graph of `claims`, naming each queried device."""

    def __init__(self, message: str, claims: Claims, reasons: Mapping[int, str]) -> None:
        super().__init__(message)
        self.claims = claims
        self.reasons = reasons


Choose: TypeAlias = Callable[[Ints], Ints]
"""From (D, N) levels, the device of each node: one whose level is not REFUSED."""


def place_by_priority(claims: Claims, stated: Ints) -> Placement:
    """Every node on the first device that runs it natively, otherwise on the first that evaluates it, or as the user
    chose.

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
    moved = np.zeros(len(claims.graph.nodes), bool)
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
    numbers = np.full(len(claims.graph.nodes), -1, np.int64)
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
        f"{len(unplaced)} of {len(claims.graph.nodes)} nodes of `{claims.graph.model.name}` cannot be placed on "
        f"{', '.join(claims.devices)}:\n" + "\n".join(lines),
        claims,
        reasons,
    )


def _why_unplaceable(claims: Claims, number: int, stated: int) -> str:
    asked = [stated] if stated != UNPLACED else range(len(claims.devices))
    where = f"affinity {claims.devices[stated]}; " if stated != UNPLACED else ""
    return where + "; ".join(f"{claims.devices[device]}: {claims.reason(device, number)}" for device in asked)
