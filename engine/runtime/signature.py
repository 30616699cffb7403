"""`Signature`: the inputs and outputs of a network, and the checks of a request's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from engine.errors import DeclarationError, InputError, PluginContractError
from engine.ir import Dimension, TensorType, as_dimension
from engine.runtime.port import Port
from engine.runtime.remote import RemoteContext, RemoteTensor
from engine.runtime.states import StatePort
from engine.runtime.values import Array, PortCheck, Value, is_copy


class Signature:
    """Ports, the maps from name or index to index, and their checks; one per network, shared by its requests.

    Thread-safe; once its context is set, only its observer changes. `network` names the network in messages. `states`
    are the variables: stages see them as further inputs and outputs, behind the user's. `fixed` are inputs of the model
    that a blob has as constants. `observer` is called at the end of each inference with its inputs, its outputs, and
    whether the user has set no output tensors; it never raises.
    """

    __slots__ = (
        "_fixed", "_symbols", "_ties", "input_checks", "input_index", "inputs", "network", "observer", "output_checks",
        "output_index", "outputs", "result_checks", "states",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        network: str,
        states: Sequence[StatePort] = (),
        fixed: frozenset[str] = frozenset(),
    ) -> None:
        self.network = network
        self._fixed = fixed
        self.observer: Callable[[Sequence[Value], Sequence[Value], bool], None] | None = None
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.states = tuple(states)
        self.input_index = _index(self.inputs, "input", network)
        self.output_index = _index(self.outputs, "output", network)
        self.input_checks = [PortCheck(p, f"{network}: input `{p.name}`") for p in self.inputs]
        self.output_checks = [PortCheck(p, f"{network}: output `{p.name}`") for p in self.outputs]
        self.result_checks = [
            _result_check(p, network, may_grow=position >= len(self.outputs))
            for position, p in enumerate((*self.outputs, *(state.after for state in self.states)))
        ]
        # One place for each, since equal symbols have equal lengths, and a model may have hundreds of inputs.
        self._symbols = [(symbol, *places[-1]) for symbol, places in _places(self.inputs).items()]
        self._ties = _ties((*self.inputs, *(state.before for state in self.states)))

    def use_context(self, context: RemoteContext) -> None:
        """Admit the remote tensors of a context as inputs and outputs."""
        for check in (*self.input_checks, *self.output_checks):
            check.context = context

    def find_input(self, key: str | int) -> int:
        """Return the index of an input. Raises `InputError` listing the inputs."""
        return self._find(key, self.input_index, "input")

    def find_output(self, key: str | int) -> int:
        """Return the index of an output. Raises `InputError` listing the outputs."""
        return self._find(key, self.output_index, "output")

    def port(self, key: str | int | None, ports: Sequence[Port], what: str) -> Port:
        """Return an input or output; without a key, the only one. Raises `InputError`."""
        if key is None:
            if len(ports) == 1:
                return ports[0]
            names = ", ".join(port.name for port in ports) or "none"
            raise InputError(f"{self.network} has {len(ports)} {what}s, so {what}() needs a name or an index: {names}")
        return ports[self._find(key, self.input_index if what == "input" else self.output_index, what)]

    def _find(self, key: str | int, index: Mapping[str | int, int], what: str) -> int:
        try:
            return index[key]
        except (KeyError, TypeError):
            pass
        names = [name for name in index if isinstance(name, str)]
        if what == "input" and isinstance(key, str) and key in self._fixed:
            raise InputError(
                f"{self.network}: `{key}` has the value of the model's file, where it is an initializer, here; compile "
                f"the model after `model.make_input({key!r})` to give it others"
            )
        import difflib  # for this message alone

        close = difflib.get_close_matches(str(key), names, n=1)
        hint = f"; did you mean `{close[0]}`?" if close else ""
        raise InputError(f"{self.network}: no {what} {key!r}{hint}; {what}s: {', '.join(names) or 'none'}")

    def bind(self, current: Sequence[Value], given: object) -> tuple[list[Value], dict[int, Value]]:
        """Return the values of all inputs, `current` overridden by the checked `given` ones.

        Also return, by position, the given values that were copied. `given` is a mapping by name or
        index, a list or tuple in input order, or one array. Raises `InputError`.
        """
        bound = list(current)
        copied: dict[int, Value] = {}
        checks, index = self.input_checks, self.input_index
        if type(given) is dict or isinstance(given, Mapping):  # the exact type is the common case, and quicker to check
            positions = []
            for key, value in given.items():
                try:
                    position = index[key]
                except KeyError:
                    position = self.find_input(key)  # raises, listing the inputs
                bound[position] = admitted = checks[position].admit(value)
                if admitted is not value and is_copy(admitted, value):
                    copied[position] = value
                positions.append(position)
            if len(positions) > 1 and len(set(positions)) < len(positions):
                self._refuse_repeated(positions)
            return bound, copied
        values = given if isinstance(given, (list, tuple)) else (given,)
        if len(values) != len(checks):
            names = ", ".join(port.name for port in self.inputs) or "none"
            raise InputError(
                f"{self.network}: got {len(values)} inputs, expected {len(checks)} ({names}); "
                f"pass a mapping of names to values, or a list with one value for each"
            )
        bound = [check.admit(value) for check, value in zip(checks, values, strict=True)]
        for position, (admitted, value) in enumerate(zip(bound, values, strict=True)):
            if admitted is not value and is_copy(admitted, value):
                copied[position] = value
        return bound, copied

    def _refuse_repeated(self, positions: Sequence[int]) -> NoReturn:
        twice = next(position for position in positions if positions.count(position) > 1)
        name = self.inputs[twice].name
        raise InputError(f"{self.network}: input `{name}` is given twice, by name and by index {twice}; pass it once")

    def check_ties(self, values: Sequence[Value]) -> None:
        """Raise `InputError` if a symbolic dimension has different lengths in different inputs."""
        for symbol, places in self._ties:
            lengths = [values[i].shape[axis] for i, axis in places]
            if len(set(lengths)) > 1:
                names = [f"`{self._name(i)}`[{axis}]" for i, axis in places]
                listed = ", ".join(f"{name} is {length}" for name, length in zip(names, lengths, strict=True))
                raise InputError(
                    f"{self.network}: dimension {symbol} must be the same everywhere: {listed}{self._way_out(places)}"
                )

    def _way_out(self, places: Sequence[tuple[int, int]]) -> str:
        """How to give the last input of `places` lengths of its own."""
        last = max((i for i, _ in places if i < len(self.inputs)), default=None)
        if last is None:
            return ""
        axes = [axis for i, axis in places if i == last]
        port = self.inputs[last]
        dims = ", ".join("None" if axis in axes else _written(dim) for axis, dim in enumerate(port.shape))
        return (
            f"; if they may differ in this model, compile it after `model.reshape({{{port.name!r}: [{dims}]}})`, which "
            f"gives `{port.name}` a length of its own"
        )

    def _name(self, position: int) -> str:
        """The name of a value that stages read."""
        count = len(self.inputs)
        return self.inputs[position].name if position < count else self.states[position - count].name

    def lengths(self, values: Sequence[Value]) -> dict[str, int]:
        """The lengths of the symbols in the shapes of the user's inputs."""
        return {symbol: values[position].shape[axis] for symbol, position, axis in self._symbols}

    @property
    def is_tied(self) -> bool:
        """Whether any symbolic dimension occurs in several inputs."""
        return bool(self._ties)


def _written(dim: Dimension) -> str:
    if dim.is_static:
        return str(dim)
    return repr(str(dim)) if as_dimension(str(dim)) == dim else "None"  # a symbol may look like a length


def _result_check(port: Port, network: str, *, may_grow: bool) -> PortCheck:
    if port.declared_of:
        where = f"{network}: {port.declared_of} gives another shape than the model declares for output `{port.name}`"
        return PortCheck(port, f"{where} or a value before it", DeclarationError, may_grow=may_grow)
    where = f"{network}: the device's result for output `{port.name}` is not what the model declares"
    return PortCheck(port, where, PluginContractError, may_grow=may_grow)


def _index(ports: Sequence[Port], what: str, network: str) -> Mapping[str | int, int]:
    index: dict[str | int, int] = {}
    for position, port in enumerate(ports):
        if port.name in index:
            raise PluginContractError(f"{network}: two {what}s are called `{port.name}`")
        index[port.name] = position
    index.update({position: position for position in range(len(ports))})
    return index


def _ties(ports: Sequence[Port]) -> list[tuple[str, list[tuple[int, int]]]]:
    return [(symbol, found) for symbol, found in _places(ports).items() if len({i for i, _ in found}) > 1]


def _places(ports: Sequence[Port]) -> dict[str, list[tuple[int, int]]]:
    """Where each symbol stands in the shapes of tensors: positions and axes."""
    places: dict[str, list[tuple[int, int]]] = {}
    for position, port in enumerate(ports):
        if isinstance(port.type, TensorType) and port.type.shape.rank.is_static:
            for axis, dim in enumerate(port.type.shape):
                if dim.symbol is not None:
                    places.setdefault(dim.symbol, []).append((position, axis))
    return places


def overlaps(array: Array, others: Sequence[Any]) -> bool:
    """Whether `array` may share memory with any value among `others`; sequences count as sharing."""
    return any(_overlap(array, other) for other in others)


def _overlap(array: Array, other: Any) -> bool:
    if isinstance(other, np.ndarray):
        return np.may_share_memory(array, other)
    return other.shares_memory(array) if isinstance(other, RemoteTensor) else other is not None
