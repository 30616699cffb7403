"""REPEATABLE: results that depend on nothing but their own inputs, bit for bit.

A sum of floating-point numbers depends on the order of its terms. Kernels that choose an order by the number of rows,
workers or images use one that depends on none of them instead; what has no such kernel is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from engine.errors import PropertyError, UnsupportedError
from engine.plugin_api import Config, Property
from engine.properties import REPEATABLE
from engine_cpu.compilation import Compilation
from engine_cpu.properties import COMPILE_EFFORT, KV_CACHE_PRECISION

if TYPE_CHECKING:
    from engine_cpu.lowering import CpuGraph

_RULED_OUT: Final[Mapping[Property[Any], str]] = {
    COMPILE_EFFORT: "which chooses kernels by measured times",
    KV_CACHE_PRECISION: "which rounds keys for later runs only",
}
"""Properties that must have their defaults, and why."""
_REFUSED: Final = {
    "ExpertMatMul": "products of an expert's rows are summed in an order that depends on how many tokens chose it",
}
_NAMED: Final = 3


def is_repeatable(config: Config) -> bool:
    """Whether REPEATABLE is on. Raises `PropertyError` if another property rules it out."""
    if not config[REPEATABLE]:
        return False
    for each, why in _RULED_OUT.items():
        if config[each] != each.default:
            raise PropertyError(
                f"{REPEATABLE.name} is on, but {each.name} is {config[each]}, {why}; expected {each.default}: omit one "
                "of them"
            )
    return True


def check_repeatable(network: str, prepared: CpuGraph) -> None:
    """Raise `UnsupportedError`, naming nodes, unless each node of a graph has kernels that are repeatable."""
    from engine.ir.walk import all_nodes
    from engine.ops.origin import extension_of

    refusals, found = prepared.refusals(), []
    for node in all_nodes(prepared.graph):
        if node in refusals and not node.bodies:
            found.append(f"{node} runs on the reference evaluator ({refusals[node].reason})")
        elif extension_of(node):
            found.append(f"{node} runs a kernel of an extension")
        elif why := _REFUSED.get(node.op_type):
            found.append(f"{node}: {why}")
    if found:
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise UnsupportedError(
            f"{network}: {REPEATABLE.name} is on, and CPU cannot guarantee it for {len(found)} operations: "
            f"{'; '.join(found[:_NAMED])}{more}; compile without {REPEATABLE.name}"
        )


def check_made_repeatable(network: str, config: Config, made: Compilation) -> None:
    """Raise `UnsupportedError` if REPEATABLE is on for the import of a blob that was compiled without."""
    if config[REPEATABLE] and not made.is_repeatable:
        raise UnsupportedError(
            f"{network}: {REPEATABLE.name} is on, but the blob was compiled without; omit it, or compile the model "
            "again with it"
        )
