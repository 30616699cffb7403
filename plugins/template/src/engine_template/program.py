"""The device graph: the program that the device runs, with all decisions made before an inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.ir import Constant
from engine.ops.reference import compile_node, constant_value
from engine.plugin_api import Model
from engine.startup import dataclass

Value = Any
"""A numpy array, a list of values, or None for an empty optional."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: the memory slots that it reads, writes, and is the last to read."""

    name: str
    op_type: str
    run: Callable[[Sequence[Value]], Sequence[Value]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]


@dataclass(slots=True)
class Program:
    """The operations in order, and the slots of inputs, outputs and constants. Shared by requests, so immutable."""

    operations: list[Operation]
    inputs: list[int]
    outputs: list[int]
    memory: list[Value]
    """The device memory with the constants; each inference starts from a copy."""
    constants: list[int]

    def fill_weights(self, graph: Model) -> None:
        """Step three of compiling: bring the constants into device memory. On the host they are used in place, if their
        elements are in order."""
        constants = [node for node in graph.ordered_nodes() if isinstance(node, Constant)]
        for slot, constant in zip(self.constants, constants, strict=True):
            self.memory[slot] = constant_value(constant.data)


def map_to_device(graph: Model) -> Program:
    """Step two of compiling: a slot for every value, which is freed after its last use."""
    nodes = graph.ordered_nodes()
    # Slot 0 stays empty: it represents omitted optional inputs.
    slots: dict[tuple[object, int], int] = {}
    for node in nodes:
        for index in range(node.num_outputs):
            slots[node, index] = len(slots) + 1
    read = {node: tuple(0 if s is None else slots[s.node, s.index] for s in node.input_values) for node in nodes}
    outputs = [read[result][0] for result in graph.results]
    constants = [slots[node, 0] for node in nodes if isinstance(node, Constant)]
    kept = {0, *outputs, *constants}
    operations: list[Operation] = []
    for node in reversed(nodes):  # backwards: the first reader found is the last to run
        if node.op_type in ("Parameter", "Constant", "Result"):
            continue
        written = tuple(slots[node, index] for index in range(node.num_outputs))
        frees = tuple({*read[node], *written} - kept)
        kept.update(frees)
        operations.append(Operation(node.friendly_name, node.op_type, compile_node(node), read[node], written, frees))
    operations.reverse()
    inputs = [slots[parameter, 0] for parameter in graph.parameters]
    return Program(operations, inputs, outputs, [None] * (len(slots) + 1), constants)
