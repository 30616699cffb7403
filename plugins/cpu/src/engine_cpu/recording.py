"""`RecordingBuilder`: a plan builder that keeps its calls, so that plans for several lengths can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from engine.native import Attribute, PlanBuilder
from engine.startup import dataclass

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class BufferCall:
    """A buffer that was added: its kind, and its sizes in bytes. Buffers are numbered in the order of their calls."""

    kind: str
    nbytes: int
    alignment: int = 1
    of: int = -1
    offset: int = 0
    array: Array | None = None


@dataclass(frozen=True, slots=True)
class StepCall:
    """A step that was added; `numbers` are its attributes."""

    kernel: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    numbers: Mapping[str, Attribute]
    name: str


PlanCalls: TypeAlias = "Sequence[BufferCall | StepCall]"
"""What builds a plan, in order."""


class RecordingBuilder(PlanBuilder):
    """A `PlanBuilder` that keeps its calls.

    Its buffers are numbered without the temporaries of steps, whose number may depend on the lengths.
    """

    __slots__ = ("_ids", "calls")

    def __init__(self, *, isa: str | None = None, threads: int = 0) -> None:
        super().__init__(isa=isa, threads=threads)
        self.calls: list[BufferCall | StepCall] = []
        self._ids: list[int] = []

    def add_input(self, nbytes: int, alignment: int = 1) -> int:
        """Call `PlanBuilder.add_input`, and keep the call."""
        return self._added(super().add_input(nbytes, alignment), BufferCall("input", nbytes, alignment))

    def add_output(self, nbytes: int, alignment: int = 1) -> int:
        """Call `PlanBuilder.add_output`, and keep the call."""
        return self._added(super().add_output(nbytes, alignment), BufferCall("output", nbytes, alignment))

    def add_state(self, nbytes: int, alignment: int = 1) -> int:
        """Call `PlanBuilder.add_state`, and keep the call."""
        return self._added(super().add_state(nbytes, alignment), BufferCall("state", nbytes, alignment))

    def add_buffer(self, nbytes: int, alignment: int = 64) -> int:
        """Call `PlanBuilder.add_buffer`, and keep the call."""
        return self._added(super().add_buffer(nbytes, alignment), BufferCall("buffer", nbytes, alignment))

    def add_constant(self, array: Array) -> int:
        """Call `PlanBuilder.add_constant`, and keep the call with its array."""
        return self._added(super().add_constant(array), BufferCall("constant", array.nbytes, array=array))

    def add_view(self, of: int, offset: int, nbytes: int) -> int:
        """Call `PlanBuilder.add_view`, and keep the call."""
        made = super().add_view(self._ids[of], offset, nbytes)
        return self._added(made, BufferCall("view", nbytes, of=of, offset=offset))

    def add_step(
        self,
        kernel: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        attributes: Mapping[str, Attribute] | None = None,
        name: str = "",
    ) -> int:
        """Call `PlanBuilder.add_step`, and keep the call without temporaries."""
        own_inputs, own_outputs = [self._ids[each] for each in inputs], [self._ids[each] for each in outputs]
        made = super().add_step(kernel, own_inputs, own_outputs, attributes, name)
        self.calls.append(StepCall(kernel, tuple(inputs), tuple(outputs), dict(attributes or {}), name))
        return made

    def _added(self, made: int, call: BufferCall) -> int:
        self._ids.append(made)
        self.calls.append(call)
        return len(self._ids) - 1
