"""The instruction set that a network is compiled for: the lowest with the same kernels as on this CPU."""

from __future__ import annotations

import platform
from functools import cache
from typing import Final

from engine.ir import Model
from engine.native import features, isas_within, kernel_isas

ARCHITECTURE: Final = platform.machine().lower()
"""What a blob needs besides an instruction set: `generic` kernels of each architecture pack weights differently."""

_INTEGER: Final = frozenset(
    {"QuantizedConv", "QuantizedMatMul", "QuantizedProduct", "MatMulInteger", "ConvInteger", "CompressedMatMul"}
)


def needed_isa(graph: Model, precision: str, available: str) -> str:
    """The lowest instruction set with the same kernels for a graph in this precision as `available`.

    Blobs have weights packed for one instruction set, and run on all CPUs that support it.
    """
    return _isa_of(precision, available, _multiplies_integers(graph))


@cache
def _isa_of(precision: str, available: str, is_integer: bool) -> str:
    used = {
        isa
        for kernel, isas in kernel_isas().items()
        if (precision == "bf16" or "bf16" not in kernel) and (is_integer or "int8" not in kernel)
        for isa in isas
        if features(isa) <= features(available)
    }
    needed = frozenset[str]().union(*map(features, used))
    return next(isa for isa in isas_within(available) if needed <= features(isa))


def _multiplies_integers(graph: Model) -> bool:
    """Whether the graph, or a body in it, has a node with an integer kernel."""
    return any(
        node.op_type in _INTEGER or any(_multiplies_integers(body) for body in node.bodies.values())
        for node in graph.ordered_nodes()
    )
