"""`Overrides`: values for initializers that a model's file also lists as inputs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Protocol

from engine.ir import Model
from engine.runtime import Port
from engine.runtime.lifecycle import ForkSafeLock
from engine.startup import dataclass


class Network(Protocol):
    """The part of a network that `Overrides` needs."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The ports of the inputs, in the order of the model."""


@dataclass(frozen=True, slots=True)
class Initializers:
    """The initializers of a model that its file also lists as inputs.

    Attributes:
        ports: each of them, by name.
        read: returns the model, which must not change any more. A network from a cache has not read it yet.
    """

    ports: Mapping[str, Port]
    read: Callable[[], Model]

    @classmethod
    def of(cls, model: Model) -> Initializers:
        """Those of a model that was read."""
        constants = model.overridable_constants
        return cls({name: Port(name, constant.input_type) for name, constant in constants.items()}, lambda: model)


class Overrides:
    """The initializers that an inference may give other values, and the networks in which they are inputs.

    A network has them as constants, which is what makes it fast. When one is first given a value, the model is compiled
    again with it as its last input; that network serves all further inferences that give one. Thread-safe.

    Args:
        initializers: the model's.
        compiled: compiles a model as the network was.

    Attributes:
        ports: the initializers by name.
    """

    __slots__ = ("_compiled", "_initializers", "_lock", "_made", "_model", "_names", "ports")

    def __init__(self, initializers: Initializers, compiled: Callable[[Model], Any]) -> None:
        self.ports = dict(initializers.ports)
        self._initializers = initializers
        self._model: Model | None = None
        self._compiled = compiled
        self._lock = ForkSafeLock()
        self._names: set[str] = set()
        self._made: Any | None = None

    def given(self, inputs: object) -> frozenset[str]:
        """The names of initializers among the keys of `inputs`."""
        return frozenset(self.ports.keys() & inputs.keys()) if isinstance(inputs, Mapping) else frozenset()

    def network(self, names: Iterable[str]) -> Any:
        """A network in which at least these initializers are inputs. Raises the errors of reading and compiling."""
        with self._lock:
            wanted = self._names.union(names)
            if self._made is None or wanted != self._names:
                model = self._read().clone()
                model.make_inputs(name for name in self.ports if name in wanted)
                self._made, self._names = self._compiled(model), wanted
            return self._made

    def defaults(self, network: Network, given: Container[Any] = ()) -> dict[str, Any]:
        """The values in the file of the initializers that are inputs of `network`, and not `given`, by name."""
        names = [port.name for port in network.inputs if port.name in self.ports and port.name not in given]
        return {name: self.default(name) for name in names}

    def default(self, name: str) -> Any:
        """The value of an initializer in the file. Raises the errors of reading the model."""
        return self._read().overridable_constants[name].data

    def completed(self, inputs: Mapping[Any, Any], network: Network) -> dict[Any, Any]:
        """`inputs` for such a network, with the values in the file of the initializers that are not given."""
        return self.defaults(network, inputs) | dict(inputs)

    def _read(self) -> Model:
        with self._lock:
            if self._model is None:
                self._model = self._initializers.read()
            return self._model
