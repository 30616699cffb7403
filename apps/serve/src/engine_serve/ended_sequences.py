"""The ids of sequences that have ended, and the reasons; they are kept after the models are unloaded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final, TypeAlias

Identity: TypeAlias = int | str

_REMEMBERED: Final = 65536
"""How many ids of ended sequences are kept for a version."""
_UNSERVED: Final = 2 * _REMEMBERED
"""How many are kept for all versions that are not served, together."""


class EndedSequences:
    """The last ended sequences of a version, for answers to requests that still name them."""

    def __init__(self) -> None:
        self._told: OrderedDict[Identity, str] = OrderedDict()

    def __contains__(self, identity: Identity) -> bool:
        return identity in self._told

    def __len__(self) -> int:
        return len(self._told)

    def reason(self, identity: Identity) -> str | None:
        """The fate of a sequence, such as "has ended: ..."; None if it is not known."""
        return self._told.get(identity)

    def note(self, identity: Identity, what: str) -> None:
        """Record a sequence; the oldest record may be dropped."""
        self._told[identity] = what
        self._told.move_to_end(identity)
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)

    def take(self, other: EndedSequences, running: Collection[Identity] = ()) -> None:
        """Also record the ended sequences of another version, unless they run."""
        for identity, what in other._told.items():
            if identity not in running:
                self.note(identity, what)


class EndedTables:
    """The ended sequences of all versions of all models, including some that are not served now."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, int], EndedSequences] = OrderedDict()
        self._reached: dict[str, int] = {}
        """The version of each name that requests without a version reach, or reached last."""

    def of(self, name: str, number: int) -> EndedSequences:
        """The table of a version, the same one each time."""
        table = self._tables[name, number] = self._tables.pop((name, number), EndedSequences())
        return table

    def reach(self, name: str, number: int) -> int | None:
        """Record which version requests without a version reach; returns the one that they reached before, if it
        differs.
        """
        before, self._reached[name] = self._reached.get(name), number
        return None if before == number else before

    def forget(self, served: Collection[tuple[str, int]]) -> None:
        """Drop versions that are not served: those without sequences, and the oldest ones if there are too many."""
        unserved = [key for key in self._tables if key not in served]
        held = sum(len(self._tables[key]) for key in unserved)
        for key in unserved:
            size = len(self._tables[key])
            if not size or held > _UNSERVED:
                del self._tables[key]
                held -= size
        names = {name for name, _ in self._tables}
        self._reached = {name: number for name, number in self._reached.items() if name in names}
