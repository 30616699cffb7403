"""What a device knows of an operator: one lowering, found by the operator's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from engine.ir import Node, Output
from engine.lowering.checks import check_tensor, first_refusal, is_left_out
from engine.lowering.refusal import Refusal


class Lowering(ABC):
    """How one operator, or several that are alike, is run by a device; devices add what they need to this."""

    @abstractmethod
    def check(self, node: Node) -> Refusal | None:
        """Say why `node` cannot run here; None where it can.

        Looks at types, attributes, rank and which inputs are constant. The inputs are tensors of known rank, as far
        as they are given. Lengths may be unknown: the answer must hold for all of them.
        """


LoweringT = TypeVar("LoweringT", bound=Lowering)


class LoweringTable(Generic[LoweringT]):
    """The lowerings of a device."""

    def __init__(self) -> None:
        self._lowerings: dict[tuple[str, str], LoweringT] = {}

    def lowers(self, *op_types: str, domain: str = "") -> Callable[[type[LoweringT]], type[LoweringT]]:
        """Register a class of lowerings, made without arguments, for operators of one domain.

        Raises `ValueError` where an operator has one already.
        """

        def register(cls: type[LoweringT]) -> type[LoweringT]:
            lowering = cls()
            for op_type in op_types:
                if (domain, op_type) in self._lowerings:
                    raise ValueError(f"{op_type} of domain {domain!r} has two lowerings")
                self._lowerings[domain, op_type] = lowering
            return cls

        return register

    def find(self, node: Node) -> LoweringT | None:
        """The lowering for a node's operator; None where it has none."""
        return self._lowerings.get((node.domain, node.op_type))

    def refusal(self, node: Node) -> Refusal | None:
        """Why `node` cannot run here; None where it can."""
        lowering = self.find(node)
        if lowering is None:
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            return Refusal("op", f"{name} has no kernel on this device")
        # The operator's own reason says more than that it leaves the rank of its outputs open.
        return _check_tensors(node.input_values) or lowering.check(node) or _check_tensors(node.outputs)


def _check_tensors(values: Iterable[Output | None]) -> Refusal | None:
    return first_refusal(*(check_tensor(value) for value in values if value is not None and not is_left_out(value)))
