"""`OldCall`, an operator call in an old model, and the registry of upgrades."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from engine.errors import ModelError, UnsupportedError
from engine.ir import ElementType, Output, undefined
from engine.ir.single_floats import as_stored
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class OldCall:
    """A call of an operator of version `version`, which is its since_version, not the opset of the model.

    Attributes:
        inputs: the formal inputs, None for omitted optional ones, then the values that the bodies capture.
        attributes: values in the form of the IR; never changed in place.
        num_outputs: the number of outputs that the model names, including omitted ones in the middle.
        name: the node's name, for messages.
    """

    op_type: str
    domain: str
    version: int
    inputs: tuple[Output | None, ...]
    attributes: Mapping[str, Any]
    num_outputs: int
    name: str

    def at(
        self,
        version: int,
        *,
        op_type: str | None = None,
        inputs: Sequence[Output | None] | None = None,
        drop: Sequence[str] = (),
        **attributes: Any,
    ) -> OldCall:
        """This call at `version`, without the attributes of `drop` and with `attributes`."""
        kept = {name: value for name, value in self.attributes.items() if name not in drop}
        return OldCall(
            self.op_type if op_type is None else op_type,
            self.domain,
            version,
            self.inputs if inputs is None else tuple(inputs),
            kept | attributes,
            self.num_outputs,
            self.name,
        )

    def replace(self, **changes: Any) -> OldCall:
        """A copy with these fields changed."""
        return dataclasses.replace(self, **changes)

    def has_input(self, index: int) -> bool:
        """Whether input `index` exists and is not omitted."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Output:
        """Input `index`. Raises `ModelError` if it is missing."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            self.invalid(f"input {index} is missing")
        return value

    def element_type(self, index: int) -> ElementType:
        """The element type of input `index`. Raises `UnsupportedError` if it is unknown."""
        found = self.input(index).element_type
        if found is undefined:
            self.unsupported(
                f"the element type of input {index} is unknown",
                "state it in the model's value_info, or write the model at a newer opset",
            )
        return found

    def integer(self, name: str, default: int | None = None) -> int:
        """An INT attribute; required if `default` is None. Raises `ModelError`."""
        value = self._attribute(name, default)
        if not isinstance(value, (int, np.integer)):
            self.invalid(f"attribute `{name}` is {value!r}; expected an integer")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A FLOAT attribute, a default as its f32 value; required if `default` is None. Raises `ModelError`."""
        value = self._attribute(name, as_stored(name, default))
        if not isinstance(value, (int, float, np.integer, np.floating)):
            self.invalid(f"attribute `{name}` is {value!r}; expected a number")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """A STRING attribute; required if `default` is None. Raises `ModelError`."""
        value = self._attribute(name, default)
        if not isinstance(value, str):
            self.invalid(f"attribute `{name}` is {value!r}; expected text")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """An INTS attribute; empty if it is absent. Raises `ModelError`."""
        value = self.attributes.get(name, ())
        if not isinstance(value, (tuple, list)) or not all(isinstance(v, (int, np.integer)) for v in value):
            self.invalid(f"attribute `{name}` is {value!r}; expected a list of integers")
        return tuple(map(int, value))

    def numbers(self, name: str) -> tuple[float, ...]:
        """A FLOATS attribute; empty if it is absent. Raises `ModelError`."""
        value = self.attributes.get(name, ())
        if not isinstance(value, (tuple, list)) or not all(isinstance(v, (int, float, np.number)) for v in value):
            self.invalid(f"attribute `{name}` is {value!r}; expected a list of numbers")
        return tuple(map(float, value))

    def invalid(self, reason: str) -> NoReturn:
        """Raise `ModelError`: the call is not valid in its operator's version."""
        raise ModelError(f"{self}: {reason}")

    def unsupported(self, reason: str, way_out: str) -> NoReturn:
        """Raise `UnsupportedError`: the call is valid, but has no canonical form."""
        raise UnsupportedError(f"{self}: {reason}; {way_out}")

    def _attribute(self, name: str, default: Any) -> Any:
        value = self.attributes.get(name, default)
        if value is None:
            self.invalid(f"attribute `{name}` is missing")
        return value

    def __str__(self) -> str:
        domain = f"{self.domain}." if self.domain else ""
        return f"{domain}{self.op_type}-{self.version} `{self.name}`"


Upgraded: TypeAlias = OldCall | Sequence[Output]
Upgrade: TypeAlias = Callable[[OldCall], Upgraded]


@dataclass(frozen=True, slots=True)
class Transition:
    """The upgrade of one operator from version `since` to version `to`."""

    since: int
    to: int
    function: Upgrade


UPGRADES: Final[dict[tuple[str, str], list[Transition]]] = {}
"""The upgrades by (domain, op type), in order of version."""


def upgrade(*op_types: str, since: int, to: int, domain: str = "") -> Callable[[Upgrade], Upgrade]:
    """Register a function as the upgrade of `op_types` from version `since` to version `to`.

    The function returns a call of version `to` or later, of the same or of a successor operator, or the values
    that replace the call's outputs, computed by canonical nodes.
    """

    def register(function: Upgrade) -> Upgrade:
        for op_type in op_types:
            steps = UPGRADES.setdefault((domain, op_type), [])
            if any(step.since == since for step in steps):
                raise ValueError(f"{op_type}-{since} has two upgrades")
            steps.append(Transition(since, to, function))
            steps.sort(key=lambda step: step.since)
        return function

    return register
