"""`RoutineDraft`: a routine of the native core while the segments of a program add themselves to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from engine.native import RoutineBuilder

Array = np.ndarray[Any, np.dtype[Any]]
StepNames: TypeAlias = "Sequence[tuple[str, str]]"
"""The friendly name and the op type of the node of each step of a plan."""


class RoutineDraft:
    """A routine while segments add themselves to it."""

    def __init__(self) -> None:
        self.builder = RoutineBuilder()
        self.step_nodes: list[StepNames] = []
        self._constants: dict[int, Array] = {}

    def add_constant(self, array: Array) -> int:
        """Add an array as a value of the routine; returns its number. `constant` finds it again."""
        array = np.require(array, requirements=["C", "A"])
        value = self.builder.add_constant(array)
        self._constants[value] = array
        return value

    def constant(self, value: int) -> Array | None:
        """The data of a value if it is known."""
        return self._constants.get(value)
