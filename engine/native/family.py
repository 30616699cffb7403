"""Families of plans: the same steps for lengths that differ from run to run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.native.cancellation import CancelFlag
from engine.native.extension import _core
from engine.native.plan import ConstantSpans, Plan
from engine.startup import dataclass

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Varying:
    """An integer that lengths determine: a constant, and multiples of products of up to three lengths.

    Each term is (indices of the lengths, factor).
    """

    constant: int
    terms: tuple[tuple[tuple[int, ...], int], ...]

    def at(self, lengths: Sequence[int]) -> int:
        """The value for these lengths of the dynamic axes: the sum of the constant and the terms."""
        value = self.constant
        for indices, factor in self.terms:
            value += factor * math.prod(lengths[index] for index in indices)
        return value


Number: TypeAlias = "int | Varying"
VaryingForm: TypeAlias = "tuple[np.dtype[Any], Sequence[Number]]"
VaryingAttribute: TypeAlias = "Number | float | str | Sequence[Number] | Sequence[float]"


def _native(value: Any) -> Any:
    if isinstance(value, Varying):
        return _core.Varying(value.constant, list(value.terms))
    if isinstance(value, (list, tuple)):
        return [_native(each) for each in value]
    return value


class PlanFamily:
    """Collects buffers and steps as `PlanBuilder` does, with sizes and attributes that lengths determine.

    `most` has the greatest value of each length. Steps are checked when a plan is made, which is when a run needs it;
    plans for lengths that grow prepare only the steps that vary. All methods raise PlanError. Not thread-safe.
    """

    __slots__ = ("_family", "_spans")

    def __init__(self, most: Sequence[int], *, isa: str | None = None) -> None:
        self._family = _core.PlanFamily(most, isa or "")
        self._spans = ConstantSpans()

    def add_input(self, nbytes: Number, alignment: int = 1) -> int:
        """As `PlanBuilder.add_input`, with a size that may vary."""
        return self._family.add_input(_native(nbytes), alignment)

    def add_output(self, nbytes: Number, alignment: int = 1) -> int:
        """As `PlanBuilder.add_output`, with a size that may vary."""
        return self._family.add_output(_native(nbytes), alignment)

    def add_state(self, nbytes: Number, alignment: int = 1) -> int:
        """As `PlanBuilder.add_state`, with a size that may vary."""
        return self._family.add_state(_native(nbytes), alignment)

    def add_buffer(self, nbytes: Number, alignment: int = 64) -> int:
        """As `PlanBuilder.add_buffer`, with a size that may vary."""
        return self._family.add_buffer(_native(nbytes), alignment)

    def add_constant(self, array: Array, nbytes: Number) -> int:
        """Add the first `nbytes` of an array; see `PlanBuilder.add_constant`."""
        constant = self._family.add_constant(array, _native(nbytes))
        self._spans.add(array)
        return constant

    def add_view(self, of: int, offset: Number, nbytes: Number) -> int:
        """As `PlanBuilder.add_view`, with an offset and a size that may vary."""
        return self._family.add_view(of, _native(offset), _native(nbytes))

    def add_step(
        self,
        kernel: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        attributes: Mapping[str, VaryingAttribute],
        name: str = "",
    ) -> None:
        """As `PlanBuilder.add_step`, with attributes that may vary."""
        self._family.add_step(kernel, inputs, outputs, {key: _native(v) for key, v in attributes.items()}, name)

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The plan for these lengths. Raises PlanError if there is none."""
        return Plan(self._family.at(lengths), constants=self._spans)


class FamilyRunner:
    """Runs the plans of a family for any number of threads; see `PlanRunner`."""

    __slots__ = ("_runner",)

    def __init__(
        self, family: PlanFamily, outputs: Sequence[VaryingForm], *, max_threads: int = 0, kept: int = 1
    ) -> None:
        described = [(dtype, [_native(length) for length in shape]) for dtype, shape in outputs]
        self._runner = _core.FamilyRunner(family._family, described, max_threads, kept)

    def outputs(self, lengths: Sequence[int]) -> list[Array]:
        """New arrays for the outputs of a run with these lengths."""
        return self._runner.outputs(lengths)

    def fill(
        self,
        lengths: Sequence[int],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        states: Sequence[Array],
        cancel: CancelFlag,
        *,
        profile: bool = False,
    ) -> list[int] | None:
        """Run the plan for these lengths as `PlanRunner.fill` does; `states` are read and changed in place.

        Raises PlanError if the steps do not fit the lengths, and the errors of `PlanRunner.fill`.
        """
        return self._runner.fill(lengths, inputs, outputs, states, cancel._flag, profile)
