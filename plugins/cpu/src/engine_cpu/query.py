"""Query answers: how each operation of the user's model would run."""

from __future__ import annotations

from engine import lowering
from engine.errors import UnsupportedError
from engine.ir import Model, Node
from engine.lowering import Refusal
from engine.ops.reference import compile_node
from engine.plugin_api import QueryResult, Support
from engine_cpu.lowering import LOWERINGS
from engine_cpu.transform import PASSES


def query(model: Model, *, allow_reference: bool) -> QueryResult:
    """Answer for the operations of `model`."""

    def without_kernel(node: Node, why: Refusal) -> Support:
        if not allow_reference:
            return Support.refused(why.cause, f"{why.reason}; ALLOW_REFERENCE is off")
        try:
            compile_node(node)
        except UnsupportedError as e:
            return Support.refused(why.cause, f"{why.reason}; the reference evaluator refuses it: {e}")
        return Support.reference(why.cause, why.reason)

    return lowering.query(model, LOWERINGS, PASSES, without_kernel)
