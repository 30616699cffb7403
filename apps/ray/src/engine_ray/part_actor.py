"""`PartActor`: the process of a part of a model. It imports its blob, keeps its variables, and calls the next part."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from engine.core import Core
from engine.errors import DeviceError, EngineError
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork
from engine.properties import ENABLE_MMAP
from engine_ray.part_folder import ExportedPart, require_part

Array = np.ndarray[Any, np.dtype[Any]]


class Action(StrEnum):
    """What a part does for a sequence."""

    OPEN = "open"
    INFER = "infer"
    REWIND = "rewind"
    REORDER = "reorder"
    MOVE = "move"
    SET = "set"
    RESET = "reset"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class Call:
    """A step of a sequence, which goes through all parts.

    Attributes:
        sequence: whose variables it uses.
        count: the steps of the sequence before it; a part that has another number has lost the sequence.
        action, argument: what to do. Of an inference, `values` are the tensors for this part and those behind it.
        forgotten: sequences that are no longer used.
        shapes: those of the variables of the parts so far, after the step.
        is_wanted: whether the outputs are.
    """

    sequence: int
    count: int
    action: Action
    argument: Any = None
    values: Mapping[str, Array] = field(default_factory=dict)
    forgotten: Sequence[int] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    is_wanted: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a step, of the last part, or of the one at which it ended.

    Attributes:
        part: its number.
        values: the outputs of the model.
        error: why the step failed here; the parts before have taken it.
        is_lost: whether this part does not have the sequence as it was: its process was started again.
    """

    part: int
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, Array] = field(default_factory=dict)
    error: EngineError | None = None
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class PartProcess:
    """The process of a part.

    Attributes:
        part: the number of the part.
        host, process: the host's name and the process id.
        weight_bytes: of the constants of the part.
        resident_bytes: all memory of the process, by its RSS.
        own_bytes: of it, what no file has: not the pages of mapped weights and of libraries; 0 if it is not known.
        memory: what the device reports, by purpose.
        sequences: how many sequences have variables here.
    """

    part: int
    host: str
    process: int
    weight_bytes: int
    resident_bytes: int
    own_bytes: int
    memory: Mapping[str, int]
    sequences: int


@dataclass(slots=True)
class _Sequence:
    request: AsyncInferRequest
    count: int = 0


class PartActor:
    """Runs one part. Each call does a step of a sequence, and hands the tensors on to the actor of the next part."""

    def __init__(self, number: int, part: ExportedPart, path: str, kept: frozenset[str], *, is_last: bool) -> None:
        """`path`: of the blob, on this node. `kept`: the values that later parts or the caller need."""
        self._number, self._part, self._path, self._kept = number, part, path, kept
        self._is_last = is_last
        self._network: ExecutableNetwork | None = None
        self._next: Any = None
        self._sequences: dict[int, _Sequence] = {}

    def open(self, device: str, config: Mapping[str, Any]) -> EngineError | None:
        """Import the blob; returns why that is not possible."""
        try:
            require_part(self._path, self._part)
            self._network = Core().import_model(self._path, device, {**config, ENABLE_MMAP.name: True})
        except EngineError as e:
            return e
        return None

    def precede(self, following: Any) -> None:
        """Hand steps on to the actor of the next part, from now on."""
        self._next = following

    def step(self, call: Call) -> Reply | list[Any]:
        """Do a step; returns the reply, or a reference to what the actor of the next part returns."""
        try:
            found = self._done(call)
        except EngineError as e:
            return Reply(self._number, error=e)
        except Exception as e:
            error = DeviceError(f"part {self._number} of the model failed: {type(e).__name__}: {e}")
            return Reply(self._number, error=error)
        if found is None:
            return Reply(self._number, is_lost=True)
        if self._is_last:
            return Reply(self._number, found.shapes, found.values if call.is_wanted else {})
        return [self._next.step.remote(found)]

    def value(self, sequence: int, name: str) -> Array | None:
        """The value of a variable; None if this part does not have the sequence."""
        found = self._sequences.get(sequence)
        return None if found is None else found.request.query_state()[name].get()

    def process(self) -> PartProcess:
        """What this process is, and the memory that it takes."""
        resident, own = _memory()
        memory = {} if self._network is None else self._network.memory_statistics()
        return PartProcess(
            part=self._number,
            host=socket.gethostname(),
            process=os.getpid(),
            weight_bytes=self._part.weight_bytes,
            resident_bytes=resident,
            own_bytes=own,
            memory=memory,
            sequences=len(self._sequences),
        )

    # -- internals --------------------------------------------------------------------------------------------

    def _done(self, call: Call) -> Call | None:
        """The call for the next part; None if this part does not have the sequence as it was."""
        if self._network is None or (
            self._next is None and not self._is_last
        ):  # it was started again, and is not ready
            return None
        for forgotten in call.forgotten:
            self._sequences.pop(forgotten, None)
        if call.action is Action.OPEN:
            self._sequences[call.sequence] = _Sequence(self._network.create_infer_request())
        elif call.action is Action.FORK:
            source = self._sequences.get(call.argument)
            if source is None:
                return None
            has_states = bool(self._network.variables)
            request = source.request.fork() if has_states else self._network.create_infer_request()
            self._sequences[call.sequence] = _Sequence(request, source.count)
        sequence = self._sequences.get(call.sequence)
        if sequence is None or sequence.count != call.count:
            return None
        values = call.values
        if call.action is Action.INFER:
            result = sequence.request.infer({port.name: values[port.name] for port in self._network.inputs})
            values = {**values, **{port.name: result[port.name] for port in self._network.outputs}}
            values = {name: value for name, value in values.items() if name in self._kept}
        elif self._network.variables:
            self._changed(sequence.request, call)
        if call.action not in (Action.OPEN, Action.FORK):
            sequence.count += 1
        shapes = {name: state.shape for name, state in sequence.request.query_state().items()}
        return replace(call, values=values, shapes={**call.shapes, **shapes})

    def _changed(self, request: AsyncInferRequest, call: Call) -> None:
        own = request.query_state()
        match call.action:
            case Action.REWIND:
                request.rewind(call.argument)
            case Action.REORDER:
                request.reorder(call.argument)
            case Action.MOVE:
                request.move_positions(call.argument)
            case Action.SET:
                for name, value in call.argument.items():
                    if name in own:
                        own[name].set(value)
            case Action.RESET:
                for name in call.argument:
                    if name in own:
                        own[name].reset()


def _memory() -> tuple[int, int]:
    """The resident bytes of this process, and those of them that no file has."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return tuple(int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))  # type: ignore[return-value]
    except (OSError, KeyError, ValueError):
        return 0, 0
