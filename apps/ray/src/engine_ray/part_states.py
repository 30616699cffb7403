"""`PartStates`: the variables of a request whose values are in the processes of a model's parts.

The driver keeps no values but a log of the steps, by which the values are computed again after a process was lost.
"""

from __future__ import annotations

import itertools
import math
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from engine.errors import DeviceError, StateError, UnsupportedError
from engine.generation.roles import is_replaced
from engine.runtime import StatePort
from engine.runtime.states import States
from engine.runtime.values import PortCheck
from engine_ray.part_actor import Action, Array, Call, Reply
from engine_ray.part_actors import PartActors
from engine_ray.part_folder import PartFolder

Shape: TypeAlias = tuple[int, ...]

_SEQUENCES: Final = itertools.count()
_REPLAYED_AT_ONCE: Final = 64
"""Steps of a replay that are under way: they need not wait for each other, since their inputs are known."""
_PACKED_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The value of a variable, of which only the shape is known here."""

    shape: Shape


class PartStates(States):
    """The variables of one sequence or batch, in the processes of the parts. Not thread-safe.

    Each change is a step that goes through all parts. A step that fails in one of them, or is cancelled, is taken back
    by replaying the steps before it.
    """

    def __init__(self, folder: PartFolder, actors: PartActors, network: str, max_restarts: int) -> None:
        super().__init__(folder.states, network)
        self._folder, self._actors, self._max_restarts = folder, actors, max_restarts
        self._shapes: dict[str, Shape] = {}
        """Those of the values; of variables that are not in it, the initial ones."""
        self._log: list[_Step] = []
        self._replaced_names = [port.name for port in self.ports if is_replaced(port.variable)]
        self._room = 0
        self._marks: list[_Mark] = []
        """The last inferences, at most `_room`, if variables do not keep their past values."""
        self._pending: tuple[_Step, Reply, int | None] | None = None
        """An inference that the parts have done, and that this object has not accepted yet."""
        self._sequence: int | None = None
        """The number of the sequence in the parts; None if they do not have it as it is here."""
        self._epoch = -1
        self._count = 0
        self._finalizer: Any = None

    # -- an inference -----------------------------------------------------------------------------------------

    def begin(self, lengths: Mapping[str, int]) -> list[Any]:
        """The shapes of the values; those of initial values that are repeated follow from `lengths`."""
        known = self._shapes
        return [
            Elsewhere(known[each.name] if each.name in known else _initial_shape(each, lengths)) for each in self.ports
        ]

    def infer(
        self, inputs: Mapping[str, Array], shapes: Sequence[Elsewhere], check_cancelled: Callable[[], None]
    ) -> Mapping[str, Array]:
        """The outputs of an inference; the values stay as they were until `commit`."""
        known = {port.name: each.shape for port, each in zip(self.ports, shapes, strict=True)}
        values = dict(inputs)
        for part in self._folder.parts:
            for name, lengths in part.lengths.items():
                shape = known[lengths.variable]
                found = math.prod(shape) if lengths.is_size else shape[lengths.start : lengths.end]
                values[name] = np.array(found, np.int64)
        step = _Step(Action.INFER, None, values)
        reply = self._taken(step, check_cancelled)
        self._pending, self._sequence = (step.packed(), reply, self._sequence), None
        return reply.values

    def commit(self, values: Sequence[Any]) -> None:
        """Accept the last inference; the values are where they are."""
        assert self._pending is not None
        (step, reply, self._sequence), self._pending = self._pending, None
        self._note(step, reply)

    # -- between inferences -----------------------------------------------------------------------------------

    def value(self, name: str) -> Any:
        """The value of a variable, fetched from its part; before the first inference, the model's initial value."""
        port = self.port(name)
        if name not in self._shapes:
            return port.variable.initial
        part = next(number for number, each in enumerate(self._folder.parts) if name in each.variables)
        for _ in self._attempts():
            sequence = self._restored()
            if sequence is not None and (found := self._actors.value(part, sequence, name)) is not None:
                return found
        raise AssertionError  # the attempts raise

    def shape(self, name: str) -> Shape:
        """The shape of the value."""
        return self._shapes[name] if name in self._shapes else self.port(name).variable.initial.shape

    def set(self, name: str, value: object) -> None:
        """Set a variable to a copy of `value`. Raises `StateError` or `InputError` if it does not fit."""
        check = PortCheck(self.port(name).before, f"{self._network}: variable `{name}`")
        self._change(Action.SET, {name: np.array(check.admit(value), order="C")})

    def reset(self, names: Iterable[str] | None = None) -> None:
        """Give these variables, or all, their initial values again."""
        chosen = [port.name for port in self.ports] if names is None else list(names)
        for name in chosen:
            self.port(name)
        if set(chosen) == {port.name for port in self.ports}:
            self._forget()
            self._log, self._shapes, self._marks = [], {}, []
        else:
            self._change(Action.RESET, chosen)

    @property
    def is_initial(self) -> bool:
        """Whether all variables have their initial values."""
        return not self._shapes

    @property
    def length(self) -> int:
        """The common length of the variables that grow; 0 if there are none. Raises `StateError` if it differs."""
        grown = [(port.name, port.variable.axis) for port in self.ports]
        lengths = {name: self.shape(name)[axis] for name, axis in grown if axis is not None}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"`{name}` {length}" for name, length in lengths.items())
            raise StateError(f"{self._network}: the variables have different lengths: {listed}")
        return next(iter(lengths.values()), 0)

    def rewind(self, count: int) -> None:
        """Remove the last `count` positions of all variables. Raises `StateError`, and keeps all values."""
        if self._replaced_names:
            self._rewind_by_replay(count)
            return
        self._change(Action.REWIND, count)

    def _rewind_by_replay(self, count: object) -> None:
        """`rewind` of variables of which some are replaced by each inference: to one of the last inferences."""
        name, wanted = self._replaced_names[0], -1
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            wanted = self.length - count
        found = next((i for i in range(1, len(self._marks) + 1) if self._marks[-i].length == wanted), 0)
        if count and not found:
            listed = ", ".join(str(self.length - each) for each in self.checkpoint_lengths) or "none"
            raise StateError(
                f"{self._network}: cannot rewind by {count!r} positions: `{name}` does not keep its past values, and "
                f"before the last {self._room} inferences (keep_checkpoints), it can be rewound by: {listed}"
            )
        self.undo(found)

    def keep_checkpoints(self, count: int) -> None:
        """Let `undo` return to the last `count` inferences, from now on; a checkpoint takes no memory here."""
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise StateError(f"{self._network}: keep_checkpoints takes a number of inferences; got {count!r}")
        self._room = int(count)
        self._marks = self._marks[-self._room :] if self._room else []

    @property
    def checkpoint_lengths(self) -> list[int]:
        """The length of the variables that grow at each checkpoint, the oldest first."""
        return [mark.length for mark in self._marks]

    def undo(self, count: int) -> None:
        """Return to the values before the last `count` inferences, by replaying those before. Raises `StateError`."""
        marks = self._marks
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 0 <= count <= len(marks):
            raise StateError(
                f"{self._network}: cannot undo {count!r} inferences; the variables before the last {len(marks)} can be "
                f"computed again, of at most {self._room} (keep_checkpoints)"
            )
        if not count:
            return
        gone, first = {mark.step for mark in marks[-count:]}, marks[-count]
        self._forget()
        left = [step for number, step in enumerate(self._log) if number not in gone]
        # Without an inference before, there is nothing to reorder.
        self._log = list(itertools.dropwhile(lambda step: step.action is Action.REORDER, left))
        self._marks = marks[: len(marks) - count]
        self._shapes = self._shapes if self._log else {}
        for port in self.ports:
            axis = port.variable.axis
            if axis is not None and port.name in self._shapes:
                shape = self._shapes[port.name]
                self._shapes[port.name] = (*shape[:axis], first.lengths[port.name], *shape[axis + 1 :])

    def reorder(self, indices: Sequence[int] | Array) -> None:
        """Replace sequence i by sequence `indices[i]`, as beam search does. Raises `StateError`."""
        if self.is_initial:
            super().reorder(indices)  # raises
        self._change(Action.REORDER, np.asarray(indices))

    def move_positions(self, columns: Array) -> None:
        """Let position p of sequence i have the values of its position `columns[i, p]`. Raises `StateError`."""
        self._change(Action.MOVE, columns)

    def take_sequence(self, index: int, other: States) -> None:
        """Raises `UnsupportedError`."""
        raise self._no_batches()

    def gather(self, sources: Sequence[tuple[States, int, int]], *, has_room: bool = True) -> None:
        """Raises `UnsupportedError`."""
        raise self._no_batches()

    def values(self) -> dict[str, Any]:
        """The values by name; None for those that have their initial value."""
        return {port.name: self.value(port.name) if port.name in self._shapes else None for port in self.ports}

    def replace(self, values: Mapping[str, Any]) -> None:
        """Replace all values, after checking them. Raises `StateError`, `InputError`, and keeps the old ones."""
        checked = States(self.ports, self._network)
        checked.replace(values)
        self.reset()
        given = {name: np.array(value, order="C") for name, value in checked.values().items() if value is not None}
        if given:
            self._change(Action.SET, given)

    def adopt(self, other: States) -> None:
        """Take the values of another request of the same network, as a fork does."""
        assert isinstance(other, PartStates)
        self._forget()
        self._log, self._shapes = list(other._log), dict(other._shapes)
        self._room, self._marks = other._room, list(other._marks)
        source = other._restored() if other._log else None
        if source is None:  # this one is replayed
            return
        sequence, epoch = next(_SEQUENCES), other._epoch
        reply = self._actors.reply(self._actors.start(Call(sequence, other._count, Action.FORK, source)))
        if reply is not None and not reply.is_lost and reply.error is None:
            self._keep(sequence, epoch, other._count)

    # -- steps ------------------------------------------------------------------------------------------------

    def _change(self, action: Action, argument: Any) -> None:
        step = _Step(action, argument, {})
        self._note(step, self._taken(step))

    def _note(self, step: _Step, reply: Reply) -> None:
        if not self.ports:  # nothing is to be computed again
            return
        if step.action is not Action.INFER and step.action is not Action.REORDER:
            self._marks = []
        elif step.action is Action.INFER and self._room and self._replaced_names:
            grown = [(port.name, port.variable.axis) for port in self.ports]
            lengths = {name: self.shape(name)[axis] for name, axis in grown if axis is not None}
            self._marks = [*self._marks, _Mark(len(self._log), lengths)][-self._room :]
        self._log.append(step)
        names = set(self._shapes)
        match step.action:
            case Action.INFER:
                names = set(reply.shapes)
            case Action.SET:
                names |= set(step.argument)
            case Action.RESET:
                names -= set(step.argument)
        self._shapes = {name: reply.shapes[name] for name in names}

    def _taken(self, step: _Step, check_cancelled: Callable[[], None] | None = None) -> Reply:
        """Let all parts take a step, again if a process was lost. Raises the error of a part."""
        for _ in self._attempts():
            sequence = self._restored(check_cancelled)
            if sequence is None:
                continue
            self._sequence = None  # until all parts have taken the step
            call = step.call(sequence, self._count)
            reply = self._actors.reply(self._actors.start(call), check_cancelled)
            if reply is None or reply.is_lost:
                continue
            if reply.error is not None:
                if reply.part == 0:  # which leaves its variables as they were
                    self._sequence = sequence
                raise reply.error
            self._sequence, self._count = sequence, self._count + 1
            return reply
        raise AssertionError  # the attempts raise

    def _attempts(self) -> Iterable[int]:
        """One attempt, and one after each start of lost processes."""
        for attempt in range(self._max_restarts + 1):
            epoch = self._actors.epoch
            yield attempt
            self._actors.heal(epoch)
        raise DeviceError(
            f"{self._network}: processes of parts were lost in {self._max_restarts + 1} attempts of one step "
            f"(max_restarts is {self._max_restarts}); the request keeps its state: look for the reason in Ray's logs, "
            "such as a lack of memory"
        )

    def _restored(self, check_cancelled: Callable[[], None] | None = None) -> int | None:
        """The sequence in the parts, replayed if they do not have it as it is here; None if a process was lost."""
        if self._sequence is not None and self._epoch == self._actors.epoch:
            return self._sequence
        self._forget()
        sequence, epoch = next(_SEQUENCES), self._actors.epoch
        self._keep(sequence, epoch, 0)
        self._sequence = None  # until the replay has ended
        running = deque([self._actors.start(Call(sequence, 0, Action.OPEN))])
        for count, step in enumerate(self._log):
            running.append(self._actors.start(replace(step.call(sequence, count), is_wanted=False)))
            if len(running) > _REPLAYED_AT_ONCE and not self._is_taken(running.popleft(), check_cancelled):
                return None
        while running:
            if not self._is_taken(running.popleft(), check_cancelled):
                return None
        self._keep(sequence, epoch, len(self._log))
        return sequence

    def _is_taken(self, reference: Any, check_cancelled: Callable[[], None] | None) -> bool:
        """Whether a step of a replay is done; False if a process was lost meanwhile."""
        reply = self._actors.reply(reference, check_cancelled)
        if reply is not None and reply.error is not None:
            raise DeviceError(f"{self._network}: a step that had succeeded fails in a replay: {reply.error}")
        return reply is not None and not reply.is_lost

    def _keep(self, sequence: int, epoch: int, count: int) -> None:
        self._sequence, self._epoch, self._count = sequence, epoch, count
        if self._finalizer is None or not self._finalizer.alive or self._finalizer.peek()[2] != (sequence,):
            self._finalizer = weakref.finalize(self, self._actors.forget, sequence)
            self._finalizer.atexit = False

    def _forget(self) -> None:
        """Let the parts drop the sequence."""
        if self._finalizer is not None:
            self._finalizer()
        self._sequence, self._finalizer, self._pending = None, None, None

    def _no_batches(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self._network}: a model in parts cannot exchange the sequences of a batch, as a Scheduler does; use "
            "PartsNetwork.generate, or a Generator"
        )


@dataclass(frozen=True, slots=True)
class _Mark:
    """An inference in the log: its number among the steps, and the lengths of the variables that grow before it."""

    step: int
    lengths: Mapping[str, int]

    @property
    def length(self) -> int:
        return next(iter(self.lengths.values()), 0)


@dataclass(frozen=True, slots=True)
class _Step:
    """A change of the variables; of an inference, with its inputs, of which long ones may be packed."""

    action: Action
    argument: Any
    values: Mapping[str, Any]

    def call(self, sequence: int, count: int) -> Call:
        values = {name: each.array if isinstance(each, _Packed) else each for name, each in self.values.items()}
        return Call(sequence, count, self.action, self.argument, values)

    def packed(self) -> _Step:
        """The step for the log: masks, which are as long as the text so far, compress well."""
        values = {
            name: _Packed.of(each) if each.nbytes >= _PACKED_BYTES else np.array(each)
            for name, each in self.values.items()
        }
        return replace(self, values=values)


@dataclass(frozen=True, slots=True)
class _Packed:
    data: bytes
    dtype: Any
    shape: Shape

    @classmethod
    def of(cls, array: Array) -> _Packed:
        return cls(zlib.compress(np.ascontiguousarray(array).tobytes(), 1), array.dtype, array.shape)

    @property
    def array(self) -> Array:
        return np.frombuffer(zlib.decompress(self.data), self.dtype).reshape(self.shape)


def _initial_shape(port: StatePort, lengths: Mapping[str, int]) -> Shape:
    """The shape of an initial value, which is repeated where other inputs determine a length."""
    shape = list(port.variable.initial.shape)
    for axis, dim in enumerate(port.before.shape):
        if shape[axis] == 1 and dim.symbol is not None and axis != port.variable.axis:
            shape[axis] = lengths.get(dim.symbol, 1)
    return tuple(shape)
