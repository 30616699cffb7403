"""Scan: its spec, which divides the inputs and outputs into states and scanned values."""

from __future__ import annotations

from typing import Any

from engine.ir import Node, TensorType
from engine.ops.spec import OperatorSpec, rank_of, refuse, resolved_axis, specifies
from engine.startup import dataclass


@specifies("Scan")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec(OperatorSpec):
    """A body that runs for each element of the last `num_scan_inputs` inputs, with the others as its initial state.

    Attributes:
        num_scan_inputs: the number of scanned inputs.
        scan_input_axes: for each scanned input, its axis, which may be negative while the rank is unknown.
        scan_input_directions: for each scanned input, whether it is scanned from the end.
        scan_output_axes: for each stacked output, the axis of the result, which may be negative.
        scan_output_directions: for each stacked output, whether it is stacked from the end.
    """

    num_scan_inputs: int
    scan_input_axes: tuple[int, ...]
    scan_input_directions: tuple[bool, ...]
    scan_output_axes: tuple[int, ...]
    scan_output_directions: tuple[bool, ...]

    @property
    def num_states(self) -> int:
        """The number of values passed from one iteration to the next: the first inputs, and the first outputs."""
        return self.node.num_formal_inputs - self.num_scan_inputs

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        formal, scanned = node.num_formal_inputs, given["num_scan_inputs"]
        least = max(1, formal - node.num_outputs)
        if not least <= scanned <= formal:
            refuse(node, "num_scan_inputs", scanned, f"{least}..{formal}, as it has {formal} inputs")
        states = formal - scanned
        for kind, count in (("input", scanned), ("output", node.num_outputs - states)):
            axes, directions = f"scan_{kind}_axes", f"scan_{kind}_directions"
            given[axes] = _of_each(node, axes, given[axes], count)
            given[directions] = tuple(bool(value) for value in _of_each(node, directions, given[directions], count))
        given["scan_input_axes"] = tuple(
            resolved_axis(node, axis, _rank(node, states + index), "scan_input_axes")
            for index, axis in enumerate(given["scan_input_axes"])
        )


def _of_each(node: Node, name: str, values: Any, count: int) -> tuple[int, ...]:
    if not values:
        return (0,) * count
    if len(values) != count:
        refuse(node, name, list(values), f"one value for each of {count}")
    return tuple(values)


def _rank(node: Node, index: int) -> int | None:
    """The rank of a scan input; None also if it is omitted or not a tensor, which type inference rejects."""
    if not node.has_input(index) or not isinstance(node.input_value(index).type, TensorType):
        return None
    return rank_of(node, index)
