"""Prepares a graph for lowering from a model: the path that queries and compilation share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Generic, Self

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelError, PassError, UnsupportedError
from engine.ir import Model, Node, stored_bytes
from engine.limits import Limits, compilation, current_limits
from engine.lowering.binding import bind_inputs
from engine.lowering.decisions import Decisions
from engine.lowering.refusal import Refusal
from engine.lowering.specialize import Shapes, fold, is_static, specialize, unfit_inputs
from engine.lowering.table import LoweringT, LoweringTable
from engine.passes import PassPipeline
from engine.passes.runtime_info import init_node_info
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class PreparedGraph(Generic[LoweringT]):
    """A graph transformed by a device's passes and folded, with the decision for each of its nodes.

    Attributes:
        graph: owned by the device; change it only before it is lowered, and only nodes without a decision.
        decisions: how each operation is lowered, or why it is refused.
        bound: the numbers of the inputs whose values a plan is made for; see `bind_inputs`.
        limits: the limits of the compilation that made it; they also hold for each copy for other lengths.
    """

    graph: Model
    decisions: Decisions[LoweringT]
    bound: tuple[int, ...] = ()
    limits: Limits = field(default_factory=current_limits)

    @classmethod
    def of(cls, graph: Model, table: LoweringTable[LoweringT]) -> Self:
        """A graph that `prepare` made earlier, such as an exported graph, or a part of it."""
        return cls(graph, Decisions(table), bind_inputs(graph, table) if table.binds_values else ())

    @property
    def is_static(self) -> bool:
        """Whether all that a plan is made for is known, so that the graph can be lowered as it is."""
        return is_static(self.graph) and not self.bound

    def refusals(self) -> dict[Node, Refusal]:
        """The operations that have no kernel, and why; see `Decisions.refusals`."""
        return dict(self.decisions.refusals(self.graph))

    def compilation(self) -> AbstractContextManager[object]:
        """The context in which it is lowered, or specialised and lowered, within its limits."""
        return compilation(self.limits, lambda: stored_bytes(self.graph))

    def require_kernels(self, device: str, advice: str = "") -> None:
        """Raise `UnsupportedError` naming the first operation without a kernel; `advice` is appended to the message."""
        for node, why in self.decisions.refusals(self.graph):
            reason = f"{device} cannot run {node.op_type} `{node.friendly_name}` ({why.cause}): {why.reason}"
            raise UnsupportedError(f"{reason}; {advice}" if advice else reason)

    def at(
        self,
        shapes: Shapes,
        passes: PassPipeline | None = None,
        values: Mapping[int, NDArray[np.generic]] | None = None,
    ) -> PreparedGraph[LoweringT]:
        """A copy for inputs of these shapes, folded again, because the known lengths may make more values constant.

        `passes` transform it then: some patterns can only be recognised once lengths are known. `values` has the
        values of the `bound` inputs, by number.

        Raises `InputError` if the model cannot take inputs of these shapes, or with these values.
        """
        graph = specialize(self.graph, shapes, values)
        try:
            with self.compilation():
                decisions = fold(graph, self.decisions.table)
                if passes is not None and passes.run(graph):
                    decisions = Decisions(self.decisions.table)
                return PreparedGraph(graph, decisions)
        except (ModelError, PassError) as e:
            why = e.__cause__ if isinstance(e, PassError) else e
            if not isinstance(why, ModelError):
                raise
            raise unfit_inputs(self.graph, shapes, why) from e


def prepare(
    model: Model,
    table: LoweringTable[LoweringT],
    passes: PassPipeline | None = None,
    *,
    keep_names: bool = False,
) -> PreparedGraph[LoweringT]:
    """A copy of `model`, transformed by a device's passes and folded, with the decisions for its nodes.

    Args:
        model: the user's model, which is not changed.
        table: the device's lowerings.
        passes: the device's passes, if it has any.
        keep_names: record on each node which of the model's nodes it replaces, as queries need.
    """
    graph = model.clone()
    if keep_names:
        init_node_info(graph)
    if table.binds_values:
        bind_inputs(graph, table)
    if passes is not None:
        passes.run(graph)
    bound = bind_inputs(graph, table) if table.binds_values else ()
    return PreparedGraph(graph, fold(graph, table), bound)
