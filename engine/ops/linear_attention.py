"""LinearAttention: its spec, and its cost."""

from __future__ import annotations

from typing import Any, Final

from engine.ir import Node
from engine.ops.cost import lengths_of, more_time, size_of
from engine.ops.spec import OperatorSpec, check_choice, refuse, specifies
from engine.startup import dataclass

DECAYING: Final = frozenset({"gated", "gated_delta"})
"""The rules that multiply the state by input 4."""
CORRECTING: Final = frozenset({"delta", "gated_delta"})
"""The rules that write the difference from the state's prediction, times input 5."""


@specifies("LinearAttention")
@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttentionSpec(OperatorSpec):
    """A state [keys, values] of each head, updated token by token (ONNX LinearAttention-27).

    Attributes:
        scale: the factor of the queries; None is 1 / sqrt(head size).
        update_rule: how a token changes the state: "linear", "gated", "delta" or "gated_delta".
        chunk_size: a hint for the order of computation, without effect on the result.
    """

    chunk_size: int
    kv_num_heads: int
    q_num_heads: int
    scale: float | None
    update_rule: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "update_rule", given["update_rule"], ("linear", "gated", "delta", "gated_delta"))
        for name in ("kv_num_heads", "q_num_heads"):
            if given[name] < 1:
                refuse(node, name, given[name], "1 or more")
        if given["q_num_heads"] % given["kv_num_heads"]:
            refuse(node, "q_num_heads", given["q_num_heads"], f"a multiple of kv_num_heads {given['kv_num_heads']}")
        given["scale"] = given["scale"] or None


@more_time("LinearAttention")
def _time(node: Node) -> float:
    """For each time step, a state of the size of a key times the size of a value."""
    return 8.0 * size_of(node.input_value(0)) * max(1, *lengths_of(node.input_value(2))[-1:])
