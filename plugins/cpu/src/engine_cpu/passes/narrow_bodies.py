"""`NarrowBodies`: bodies of control flow that are stored in f16 or bf16 compute in f32, as the rest of a model does."""

from __future__ import annotations

from collections.abc import Callable

from engine.ir import Model, TensorType
from engine.ir.walk import runnable_bodies
from engine.passes import ModelPass
from engine.passes.common.widen_precision import NARROW


class NarrowBodies(ModelPass):
    """Runs passes on each body that has values of f16 or bf16, as on a model of its own.

    Inputs and outputs of a body keep their types, so a carried value is rounded once in each iteration.
    """

    def __init__(self, run: Callable[[Model], bool]) -> None:
        self._run = run

    def run_on_model(self, model: Model) -> bool:
        """Linear, beside the passes; True if one of them changed something."""
        changed = False
        for node in model.ordered_nodes():
            for body in runnable_bodies(node):
                if _is_narrow(body):
                    changed |= self._run(body)
                else:
                    changed |= self.run_on_model(body)
        return changed


def _is_narrow(body: Model) -> bool:
    return any(
        isinstance(value_type, TensorType) and value_type.element_type in NARROW
        for node in body.ordered_nodes()
        for value_type in node.output_types
    )
