"""Candidates for one problem, and which of them is taken: measured within a budget, or the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.ir import Node
from engine.native import Attribute


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a step.

    `name` tells candidates of one problem apart, and stays the same from version to version; `inputs` and `outputs`
    are the bytes of the step's operands, so that it can be measured.
    """

    name: str
    kernel: str
    attributes: Mapping[str, Attribute]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True)
class Tuner:
    """Chooses among candidates. `choices` are by problem; known ones are taken without measuring."""

    threads: int
    choices: dict[str, str] = field(default_factory=dict)

    def choose(self, node: Node, key: str, candidates: Sequence[Candidate], isa: str) -> Candidate:
        """The choice for `node`."""
        return candidates[0]
