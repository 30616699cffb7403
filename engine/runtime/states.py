"""`States`: the values of variables that a request keeps between inferences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from engine.errors import BlobFormatError, EngineError, StateError
from engine.runtime.checkpoints import Checkpoint, Checkpoints
from engine.runtime.growing import GrowingArray, GrowingSet, Held, plain
from engine.runtime.port import Port
from engine.runtime.values import Array, PortCheck, Value
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine.ir import Model, Variable


@dataclass(frozen=True, slots=True)
class StatePort:
    """A variable of a network: what the model says of it, and the types of its value before and after an inference."""

    variable: Variable
    before: Port
    after: Port

    @classmethod
    def of(cls, model: Model) -> tuple[Self, ...]:
        """Describe the variables of `model`, in their order, with the ports that read and write them."""
        return tuple(
            cls(variable, Port.of(model.parameter(variable.parameter)), Port.of(model.result(variable.result)))
            for variable in model.variables
        )

    @property
    def name(self) -> str:
        """The name of the variable."""
        return self.variable.name

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON values, for a blob's manifest."""
        return {
            "variable": self.variable.to_json(),
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the result of `to_json`. Raises `BlobFormatError` for anything else."""
        from engine.ir import Variable

        try:
            variable = Variable.from_json(value["variable"])
            before, after = Port.from_json(value["before"]), Port.from_json(value["after"])
            variable.check(before.type, after.type)
        except (KeyError, TypeError, EngineError) as e:
            raise BlobFormatError(f"the description of a variable is malformed: {e}") from e
        return cls(variable, before, after)


class States:
    """The current values of the variables of one request; the initial values are not created before the first
    inference.

    Values are replaced by the results of a successful inference and never changed, so requests may share them. Not
    thread-safe; `network` names the network in messages.
    """

    def __init__(self, ports: Sequence[StatePort], network: str) -> None:
        self.ports = tuple(ports)
        self._network = network
        self._values: dict[str, Held | None] = {port.name: None for port in ports}
        self._checkpoints = Checkpoints()
        variables = [port.variable for port in ports]
        # Each inference replaces these as a whole.
        self._replaced = [each.name for each in variables if each.axis is None and each.written_axis is None]
        self._checks = {
            port.name: PortCheck(port.before, f"{network}: variable `{port.name}`", may_grow=True) for port in ports
        }

    def port(self, name: str) -> StatePort:
        """The variable with this name. Raises `StateError` listing the variables."""
        for port in self.ports:
            if port.name == name:
                return port
        names = ", ".join(f"`{port.name}`" for port in self.ports) or "none"
        raise StateError(f"{self._network}: no variable `{name}`; it has {names}")

    # -- an inference ---------------------------------------------------------------------------------------

    def begin(self, lengths: Mapping[str, int]) -> list[Held]:
        """The values for an inference; `lengths` has the lengths of the symbols in the shapes of its inputs."""
        values = [self._values[port.name] for port in self.ports]
        return [
            _initial(port, lengths) if value is None else value for port, value in zip(self.ports, values, strict=True)
        ]

    def commit(self, values: Sequence[Value]) -> None:
        """Keep the values after an inference. Raises `StateError` if one exceeds its bound, and keeps the old ones."""
        for port, value in zip(self.ports, values, strict=True):
            self._check_bound(port, value)
        if self._checkpoints.room and self._replaced:
            self._checkpoints.add(self._checkpoint())
        self._values = {port.name: value for port, value in zip(self.ports, values, strict=True)}

    def _check_bound(self, port: StatePort, value: Held) -> None:
        axis, bound = port.variable.axis, port.variable.bound
        if axis is not None and bound is not None and value.shape[axis] > bound:
            raise StateError(
                f"{self._network}: variable `{port.name}` would have {value.shape[axis]} positions, and its bound is "
                f"{bound}; the request keeps the value that it had: shorten it with rewind, or start again with "
                "reset_state"
            )

    # -- between inferences -----------------------------------------------------------------------------------

    def value(self, name: str) -> Held:
        """The value of a variable; before the first inference, the model's initial value."""
        port, value = self.port(name), self._values[name]
        return port.variable.initial if value is None else value

    def set(self, name: str, value: object) -> None:
        """Set a variable to a copy of `value`. Raises `StateError` or `InputError` if it does not fit."""
        port = self.port(name)
        admitted = self._checks[name].admit(plain(value))
        self._check_bound(port, admitted)
        self._values[name] = np.array(admitted, order="C")
        self._checkpoints.forget()

    def reset(self, names: Iterable[str] | None = None) -> None:
        """Give these variables, or all, their initial values again."""
        for name in self._values if names is None else list(names):
            self.port(name)
            self._values[name] = None
        self._checkpoints.forget()

    @property
    def is_initial(self) -> bool:
        """Whether all variables have their initial values."""
        return all(value is None for value in self._values.values())

    @property
    def length(self) -> int:
        """The common length of the variables that grow; 0 if there are none. Raises `StateError` if it differs."""
        lengths = {port.name: self.value(port.name).shape[axis] for port, axis in self._growing()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"`{name}` {length}" for name, length in lengths.items())
            raise StateError(f"{self._network}: the variables have different lengths: {listed}")
        return next(iter(lengths.values()), 0)

    def rewind(self, count: int) -> None:
        """Remove the last `count` positions of all variables.

        Variables that do not grow get the values of the checkpoint at the new length. Raises `StateError`, and keeps
        all values, if that is not possible: a variable is shorter, or there is no such checkpoint.
        """
        if not _is_count(count):
            raise StateError(f"{self._network}: rewind takes a number of positions, 0 or more; got {count!r}")
        if not self.ports:
            raise StateError(f"{self._network}: cannot rewind: it has no variables")
        for port in self.ports:
            if port.variable.written_axis is not None:
                raise StateError(
                    f"{self._network}: cannot rewind: `{port.name}` has a fixed length, and inputs of the model say "
                    "where it writes; pass the earlier positions again"
                )
        if self._replaced:
            self._rewind_replaced(int(count), self._replaced[0])
            return
        shortened = self._shortened({port.name: int(count) for port, _ in self._growing()})
        if count:
            self._values |= shortened
            self._checkpoints.forget()

    def _rewind_replaced(self, count: int, name: str) -> None:
        """`rewind` of variables of which some, such as `name`, do not grow."""
        room, kept = self._checkpoints.room, self._checkpoints
        if not room:
            raise StateError(
                f"{self._network}: cannot rewind: `{name}` does not keep its past values; keep checkpoints before the "
                "inferences: request.keep_checkpoints, or Generator(checkpoints=...)"
            )
        if not self._growing():
            raise StateError(
                f"{self._network}: cannot rewind: no variable grows, so that it is not known how many positions an "
                "inference had; return to the values before an inference: request.undo"
            )
        length = self.length - count
        found = next((i for i in range(1, len(kept) + 1) if set(kept[-i].lengths.values()) == {length}), 0)
        if count and not found:
            listed = ", ".join(str(self.length - each) for each in self.checkpoint_lengths) or "none"
            raise StateError(
                f"{self._network}: cannot rewind by {count} positions: `{name}` keeps its values before the last "
                f"{room} inferences, by which it can be rewound: {listed}"
            )
        if count:
            self.undo(found)

    def keep_checkpoints(self, count: int) -> None:
        """Keep what the last `count` inferences replace, from now on; fewer than before are dropped."""
        if not _is_count(count):
            raise StateError(f"{self._network}: keep_checkpoints takes a number of inferences; got {count!r}")
        self._checkpoints = self._checkpoints.resized(int(count))

    @property
    def checkpoint_lengths(self) -> list[int]:
        """The length of the variables that grow at each checkpoint, the oldest first."""
        kept = self._checkpoints
        return [next(iter(kept[i].lengths.values()), 0) for i in range(len(kept))]

    @property
    def checkpoint_bytes(self) -> int:
        """The memory that the checkpoints hold."""
        return self._checkpoints.nbytes

    def undo(self, count: int) -> None:
        """Return to the values before the last `count` inferences. Raises `StateError`, and keeps the values."""
        kept = self._checkpoints
        if not _is_count(count) or count > len(kept):
            raise StateError(
                f"{self._network}: cannot undo {count!r} inferences; the variables before the last {len(kept)} are "
                f"kept, of at most {kept.room} (keep_checkpoints)"
            )
        if not count:
            return
        checkpoint = kept[-int(count)]
        now = {port.name: self.value(port.name).shape[axis] for port, axis in self._growing()}
        shortened = self._shortened({name: length - checkpoint.lengths[name] for name, length in now.items()})
        replaced = checkpoint.values({port.name: port.variable.batch_axis for port in self.ports})
        self._values |= {**shortened, **replaced}
        self._checkpoints = kept.without(int(count))

    def _checkpoint(self) -> Checkpoint:
        """The values that an inference is about to replace."""
        lengths = {port.name: self.value(port.name).shape[axis] for port, axis in self._growing()}
        return Checkpoint(lengths, {name: self._values[name] for name in self._replaced})

    def _shortened(self, counts: Mapping[str, int]) -> dict[str, Held | None]:
        """The variables that grow without their last positions. Raises `StateError` if one is shorter."""
        shortened: dict[str, Held | None] = {}
        sets: dict[int, _OwnSets] = {}
        for port, axis in self._growing():
            value, count = self.value(port.name), counts[port.name]
            length, first = value.shape[axis], port.variable.initial.shape[axis]
            if length - count < first:
                raise StateError(
                    f"{self._network}: cannot rewind variable `{port.name}` by {count} positions; it has "
                    f"{length - first} since its initial value"
                )
            if isinstance(value, GrowingArray):
                shortened[port.name] = sets.setdefault(count, _OwnSets(count)).shortened(value)
            else:
                shortened[port.name] = np.ascontiguousarray(value[(slice(None),) * axis + (slice(length - count),)])
        return shortened

    def reorder(self, indices: Sequence[int] | Array) -> None:
        """Replace sequence i by sequence `indices[i]`, as beam search does. Raises `StateError`."""
        order = _integers(indices)
        if order.ndim != 1 or not order.size:
            raise StateError(f"{self._network}: reorder takes a list of indices of sequences; got {indices!r:.80}")
        for port in self.ports:
            axis = port.variable.batch_axis
            if axis is None:
                raise StateError(f"{self._network}: variable `{port.name}` has no dimension of sequences to reorder")
            value = self._values[port.name]
            if value is None:
                raise StateError(f"{self._network}: reorder before the first inference; the variables have no values")
            if order.min() < 0 or order.max() >= value.shape[axis]:
                raise StateError(
                    f"{self._network}: reorder has indices from {order.min()} to {order.max()}; variable "
                    f"`{port.name}` has {value.shape[axis]} sequences"
                )
            if not port.before.shape[axis].accepts(order.size):
                raise StateError(
                    f"{self._network}: reorder has {order.size} indices; variable `{port.name}` has "
                    f"{port.before.shape[axis]} sequences"
                )
        group, made = self._group(), dict[str, Held | None]()
        if group is not None:  # rows are copied as they are kept, also those that are rounded to fewer bits
            sources = [(group, int(index), group.length) for index in order]
            axes = [port.variable.batch_axis or 0 for port, _ in self._growing()]
            made = self._of_group(GrowingSet.gathered(sources, axes))
        self._values = {
            port.name: made[port.name] if port.name in made else self._reordered(port, order) for port in self.ports
        }
        self._checkpoints = self._checkpoints.reordered(order)

    def _reordered(self, port: StatePort, order: Array) -> Array:
        value = plain(self._values[port.name])
        return np.ascontiguousarray(np.take(value, order, axis=port.variable.batch_axis or 0))

    def move_positions(self, columns: Array) -> None:
        """Let position p of sequence i have the values of its position `columns[i, p]`: [sequences, positions].

        Of variables that grow, these are the last positions, behind those of the initial value; of others, the first.
        Raises `StateError`, and keeps all values.
        """
        given, columns = columns, _integers(columns)
        if columns.ndim != 2:
            raise StateError(
                f"{self._network}: cannot move positions by {given!r:.80}; expected integers [sequences, positions]"
            )
        moved: dict[str, Held | None] = {}
        for port in self.ports:
            axis = port.variable.axis if port.variable.written_axis is None else port.variable.written_axis
            batch = port.variable.batch_axis
            if axis is None or batch is None:
                raise StateError(f"{self._network}: variable `{port.name}` has no positions of sequences to move")
            value = np.array(plain(self.value(port.name)))
            turned = np.moveaxis(value, (batch, axis), (0, 1))
            count = columns.shape[1]
            is_inside = count and ((columns >= 0) & (columns < count)).all()
            if not is_inside or len(turned) != len(columns) or count > turned.shape[1]:
                raise StateError(
                    f"{self._network}: cannot move positions of variable `{port.name}`, which has {turned.shape[1]} of "
                    f"{len(turned)} sequences; got columns of shape {list(columns.shape)}"
                )
            part = turned[:, :count] if port.variable.axis is None else turned[:, turned.shape[1] - count :]
            part[:] = part[np.arange(len(part))[:, None], columns]
            moved[port.name] = value
        self._values |= moved
        self._checkpoints.forget()

    def take_sequence(self, index: int, other: States) -> None:
        """Replace sequence `index` by the only sequence of `other`, at the end of the variables that grow.

        Before it, these get zeros. Raises `StateError`, and keeps the values, if `other` has several sequences or
        longer ones, or a variable has no dimension of sequences.
        """
        axes = []
        for port in self.ports:
            mine, given, axis = self._values[port.name], other._values.get(port.name), port.variable.batch_axis
            if axis is None or mine is None or given is None:
                why = "has no dimension of sequences" if axis is None else "has no value before the first inference"
                raise StateError(f"{self._network}: cannot replace a sequence: variable `{port.name}` {why}")
            fits = [
                (i == port.variable.axis and length <= whole) or (length == 1 if i == axis else length == whole)
                for i, (whole, length) in enumerate(zip(mine.shape, given.shape, strict=True))
            ]
            if not all(fits) or not _is_count(index) or index >= mine.shape[axis]:
                raise StateError(
                    f"{self._network}: cannot replace sequence {index!r:.80} of variable `{port.name}` "
                    f"{list(mine.shape)} by {list(given.shape)}"
                )
            axes.append(axis)
        mine_group, given_group = self._group(), other._group()
        taken: dict[str, Held | None] = {}
        for port, axis in zip(self.ports, axes, strict=True):
            if port.variable.is_growing and mine_group is not None and given_group is not None:
                continue
            mine, given = np.array(plain(self._values[port.name])), plain(other._values[port.name])
            row, one = np.moveaxis(mine, axis, 0)[index], np.moveaxis(given, axis, 0)[0]
            grown = port.variable.axis
            if grown is None:
                row[...] = one
            else:
                turned = grown - 1 if axis < grown else grown
                row, one = np.moveaxis(row, turned, 0), np.moveaxis(one, turned, 0)
                start = len(row) - len(one)
                row[:start] = 0
                row[start:] = one
            taken[port.name] = mine
        if mine_group is not None and given_group is not None:  # last, since it changes the values in place
            growing = [axis for port, axis in zip(self.ports, axes, strict=True) if port.variable.is_growing]
            taken |= self._of_group(mine_group.with_sequence(growing, index, given_group))
        self._values = {port.name: taken[port.name] for port in self.ports}
        self._checkpoints.forget()

    def rewind_each(self, counts: Sequence[int]) -> None:
        """Remove the last `counts[i]` positions of sequence i; sequences that lose more move to the end of their rows.

        Raises `StateError`, and keeps the values, if a variable does not grow, has no dimension of sequences or another
        number of them, or is shorter; `OutOfMemoryError`.
        """
        listed = [int(each) for each in self._checked_counts(counts)]
        axes = []
        for port in self.ports:
            axis, grown = port.variable.batch_axis, port.variable.axis
            if axis is None or grown is None:
                why = "has no dimension of sequences" if axis is None else "does not keep its past values"
                raise StateError(f"{self._network}: cannot rewind sequences: variable `{port.name}` {why}")
            shape, first = self.value(port.name).shape, port.variable.initial.shape[grown]
            if shape[axis] != len(listed) or shape[grown] - first < max(listed):
                raise StateError(
                    f"{self._network}: cannot rewind {len(listed)} sequences by {max(listed)} positions at most; "
                    f"variable `{port.name}` has {shape[axis]} sequences of {shape[grown] - first} positions since its "
                    "initial value"
                )
            axes.append(axis)
        if not any(listed):
            return
        group = self._group()
        if group is not None:
            self._values = self._of_group(group.shortened_each(axes, listed))
        else:
            self._values = {port.name: self._shortened_each(port, listed) for port in self.ports}
        self._checkpoints.forget()

    def _checked_counts(self, counts: Sequence[int]) -> list[int]:
        found = _integers(counts)
        if not self.ports or found.ndim != 1 or not found.size or found.min() < 0:
            raise StateError(
                f"{self._network}: rewind_each takes a number of positions, 0 or more, for each sequence of the "
                f"variables; got {counts!r:.80}"
            )
        listed: list[int] = found.tolist()
        return listed

    def _shortened_each(self, port: StatePort, counts: Sequence[int]) -> Array:
        axis, grown = port.variable.batch_axis or 0, port.variable.axis or 0
        value = plain(self._values[port.name])
        turned = np.moveaxis(value, (axis, grown), (0, 1))
        made = np.zeros_like(value, shape=(*turned.shape[:1], turned.shape[1] - min(counts), *turned.shape[2:]))
        for to, one, count in zip(made, turned, counts, strict=True):
            kept = len(one) - count
            to[len(to) - kept :] = one[:kept]
        return np.ascontiguousarray(np.moveaxis(made, (0, 1), (axis, grown)))

    def gather(self, sources: Sequence[tuple[States, int, int]], *, has_room: bool = True) -> None:
        """Let sequence i be the last `count` positions of sequence `index` of `states`, for the triple at i.

        Variables that grow are as long as the longest, with zeros before shorter ones; others are taken whole. Raises
        `StateError`, and keeps the values, if there is no such sequence, or if a variable has no dimension of sequences
        or other lengths than in the first of the sources; `OutOfMemoryError`.
        """
        if not sources:
            raise StateError(f"{self._network}: a batch is gathered of 1 sequence or more")
        for port in self.ports:
            for states, index, count in sources:
                self._check_gathered(port, states, index, count, sources[0][0])
            if not port.before.shape[port.variable.batch_axis or 0].accepts(len(sources)):
                raise StateError(
                    f"{self._network}: variable `{port.name}` has "
                    f"{port.before.shape[port.variable.batch_axis or 0]} sequences; got {len(sources)}"
                )
        groups = [states._group() for states, _, _ in sources]
        made: dict[str, Held | None] = {}
        if all(group is not None for group in groups):
            triples = [(g, i, n) for g, (_, i, n) in zip(groups, sources, strict=True) if g is not None]
            axes = [port.variable.batch_axis or 0 for port, _ in self._growing()]
            made = self._of_group(GrowingSet.gathered(triples, axes, has_room=has_room))
        others = {port.name: self._gathered(port, sources) for port in self.ports if port.name not in made}
        self._values = {port.name: (made | others)[port.name] for port in self.ports}
        self._checkpoints.forget()

    def _check_gathered(self, port: StatePort, states: States, index: int, count: int, first: States) -> None:
        axis, grown = port.variable.batch_axis, port.variable.axis
        value, like = states._values.get(port.name), first._values.get(port.name)
        if axis is None or value is None or like is None:
            why = "has no dimension of sequences" if axis is None else "has no value before the first inference"
            raise StateError(f"{self._network}: cannot gather sequences: variable `{port.name}` {why}")
        others = [i for i in range(len(like.shape)) if i not in (axis, grown)]
        is_long_enough = _is_count(count) and (grown is None or count <= value.shape[grown])
        is_alike = len(value.shape) == len(like.shape) and all(value.shape[i] == like.shape[i] for i in others)
        if not is_alike or not is_long_enough or not _is_count(index) or index >= value.shape[axis]:
            raise StateError(
                f"{self._network}: cannot gather {count!r:.80} positions of sequence {index!r:.80} of variable "
                f"`{port.name}` {list(value.shape)} beside {list(like.shape)}"
            )

    @staticmethod
    def _gathered(port: StatePort, sources: Sequence[tuple[States, int, int]]) -> Array:
        axis, grown = port.variable.batch_axis or 0, port.variable.axis
        arrays: dict[int, Array] = {id(states): plain(states._values[port.name]) for states, _, _ in sources}
        like = arrays[id(sources[0][0])]
        shape = list(like.shape)
        shape[axis] = len(sources)
        if grown is not None:
            shape[grown] = max(count for _, _, count in sources)
        made = np.zeros(shape, like.dtype)
        for row, (states, index, count) in enumerate(sources):
            to, one = np.moveaxis(made, axis, 0)[row], np.moveaxis(arrays[id(states)], axis, 0)[index]
            if grown is not None:
                turned = grown - 1 if axis < grown else grown
                to, one = np.moveaxis(to, turned, 0), np.moveaxis(one, turned, 0)
                to, one = to[len(to) - count :], one[len(one) - count :]
            to[...] = one
        return made

    def _group(self) -> GrowingSet | None:
        """The set that has all values that grow, in the order of the variables; None if there is none."""
        values = [self._values[port.name] for port, _ in self._growing()]
        group = values[0].group if values and isinstance(values[0], GrowingArray) else None
        if group is None or len(group) != len(values):
            return None
        is_whole = all(isinstance(v, GrowingArray) and v.group is group and v.index == i for i, v in enumerate(values))
        return group if is_whole else None

    def _of_group(self, group: GrowingSet) -> dict[str, Held | None]:
        """The values of a set that has all that grow, by name."""
        return {port.name: value for (port, _), value in zip(self._growing(), group.arrays, strict=True)}

    def values(self) -> dict[str, Held | None]:
        """The values by name; None for those that have their initial value."""
        return dict(self._values)

    def replace(self, values: Mapping[str, Held | None]) -> None:
        """Replace all values, after checking them. Raises `StateError`, `InputError`, and keeps the old ones."""
        if values.keys() != self._values.keys():
            raise StateError(f"{self._network}: got the variables {sorted(values)}; expected {sorted(self._values)}")
        for name, value in values.items():
            if value is not None:
                self._check_bound(self.port(name), self._checks[name].admit(value))
        sets = _OwnSets(0)
        self._values = {k: sets.shortened(v) if isinstance(v, GrowingArray) else v for k, v in values.items()}
        self._checkpoints.forget()

    def adopt(self, other: States) -> None:
        """Take the values and the checkpoints of another request of the same network, as a fork does."""
        sets = _OwnSets(0)
        self._values = {k: sets.shortened(v) if isinstance(v, GrowingArray) else v for k, v in other._values.items()}
        self._checkpoints = other._checkpoints.copy()

    def _growing(self) -> list[tuple[StatePort, int]]:
        """The variables that grow, each with its axis."""
        return [(port, axis) for port in self.ports if (axis := port.variable.axis) is not None]


class _OwnSets:
    """Makes sets that only one request has, of values without their last `count` positions."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._made: dict[GrowingSet, GrowingSet] = {}

    def shortened(self, value: GrowingArray) -> GrowingArray:
        """The value as one of the new set that was made of its set."""
        if value.group not in self._made:
            self._made[value.group] = value.group.shortened(self._count)
        return GrowingArray(self._made[value.group], value.index)


def _is_count(value: object) -> bool:
    """Whether this is a whole number of 0 or more."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 0)


def _integers(value: object) -> Array:
    """An array of integers; one without dimensions for anything else."""
    try:
        found = np.asarray(value)
    except (ValueError, TypeError, OverflowError):  # such as lists of different lengths
        return np.array(0)
    return found if found.dtype.kind in "iu" else np.array(0)


def _initial(port: StatePort, lengths: Mapping[str, int]) -> Array:
    """The initial value, repeated where other inputs determine a length."""
    shape = list(port.variable.initial.shape)
    for axis, dim in enumerate(port.before.shape):
        if shape[axis] == 1 and dim.symbol is not None and axis != port.variable.axis:
            shape[axis] = lengths.get(dim.symbol, 1)
    return np.ascontiguousarray(np.broadcast_to(port.variable.initial, shape))


class VariableState:
    """One variable of a request: its value between inferences. Methods raise `Busy` while an inference runs."""

    __slots__ = ("_access", "_port")

    def __init__(self, port: StatePort, access: Callable[[], States]) -> None:
        self._port = port
        self._access = access

    @property
    def name(self) -> str:
        """The name of the variable."""
        return self._port.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the variable's current value."""
        return self._access().value(self.name).shape

    @property
    def nbytes(self) -> int:
        """The size of the current value in bytes."""
        return self._access().value(self.name).nbytes

    def get(self) -> Array:
        """A copy of the value; before the first inference, the model's initial value."""
        return np.array(plain(self._access().value(self.name)))

    def set(self, value: object) -> None:
        """Replace the value by a copy of `value`, an array of the variable's type.

        Raises `InputError` if it does not fit, `StateError` if it is longer than the variable's bound; both leave the
        former value.
        """
        self._access().set(self.name, value)

    def reset(self) -> None:
        """Give the variable its initial value."""
        self._access().reset([self.name])

    def __repr__(self) -> str:
        return f"<variable `{self.name}`: {self._port.before.type}>"
