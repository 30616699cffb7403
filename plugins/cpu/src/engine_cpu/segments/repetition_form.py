"""`RepetitionForm`: the roles of the inputs and outputs of a Loop or a Scan."""

from __future__ import annotations

from engine.errors import UnsupportedError
from engine.ir import Node
from engine.ops.loop import NUM_FIXED, LoopForm
from engine.ops.scan import ScanSpec
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class RepetitionForm:
    """The inputs and outputs of a Loop or a Scan by their roles.

    Attributes:
        is_loop: whether the first two inputs are the number of iterations and the condition.
        carried: the number of values that an iteration passes on to the next one.
        elements: for each scanned input, its axis, and whether it is scanned from the end.
        stacks: for each stacked output, its axis, and whether it is stacked from the end.
        is_conditional: whether the condition that the body of a Loop computes may end it.
    """

    is_loop: bool
    carried: int
    elements: tuple[tuple[int, bool], ...]
    stacks: tuple[tuple[int, bool], ...]
    is_conditional: bool = False

    @classmethod
    def of(cls, node: Node) -> RepetitionForm:
        """The form of a node. Raises `UnsupportedError` if inputs and outputs do not fit together."""
        if node.op_type == "Scan":
            spec = ScanSpec.of(node)
            elements = tuple(zip(spec.scan_input_axes, spec.scan_input_directions, strict=True))
            stacks = tuple(zip(spec.scan_output_axes, spec.scan_output_directions, strict=True))
            return cls(False, spec.num_states, elements, stacks)
        loop = LoopForm.of(node)
        if loop.num_carried > node.num_outputs:
            raise UnsupportedError(f"{node} has {loop.num_carried} carried inputs and {node.num_outputs} outputs")
        stacks = ((0, False),) * (node.num_outputs - loop.num_carried)
        return cls(True, loop.num_carried, (), stacks, is_conditional=loop.condition is not None)

    @property
    def fixed(self) -> int:
        """The number of inputs before the carried ones, of the node and of the body."""
        return NUM_FIXED if self.is_loop else 0

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the body, without what it captures."""
        return self.fixed + self.carried + len(self.elements)

    @property
    def num_results(self) -> int:
        """The number of results of the body."""
        return int(self.is_loop) + self.carried + len(self.stacks)
