"""The instruction set that a network is compiled for: the lowest with the same kernels as on this CPU."""

from __future__ import annotations

import platform
from functools import cache
from typing import TYPE_CHECKING, Final

from engine.native import cpu_features, features, isas_within, kernel_isas

if TYPE_CHECKING:
    from engine.ir import Model

ARCHITECTURE: Final = platform.machine().lower()
"""The requirement of a blob besides an instruction set: `generic` kernels of each architecture pack weights
differently."""

_INTEGER: Final = frozenset(
    {
        "QuantizedConv",
        "QuantizedMatMul",
        "QuantizedProduct",
        "MatMulInteger",
        "ConvInteger",
        "CompressedMatMul",
        "ExpertMatMul",
    }
)

_told: set[str] = set()
"""The instruction sets that `why_lower` has reported."""


def needed_isa(graph: Model, precision: str, available: str) -> str:
    """The lowest instruction set with the same kernels for a graph in this precision as `available`.

    Blobs have weights packed for one instruction set, and run on all CPUs that support it.
    """
    return _isa_of(precision, available, _multiplies_integers(graph))


def kernels_of(graph: Model, precision: str, isa: str) -> str:
    """The kind of a network and the instruction set of its kernels, as a blob states them."""
    return f"{_kind(precision, _multiplies_integers(graph))} {isa}"


def kernels_of_any(isa: str) -> str:
    """The same for a network of unknown kind."""
    return f"any {isa}"


@cache
def kernels_here(available: str) -> tuple[str, ...]:
    """What `kernels_of` and `kernels_of_any` are for networks that are compiled for an instruction set."""
    found = {
        (_kind(precision, is_integer), _isa_of(precision, available, is_integer))
        for precision in ("f32", "bf16")
        for is_integer in (False, True)
    }
    return tuple(sorted({f"{kind} {isa}" for kind, isa in found} | {kernels_of_any(isa) for _, isa in found}))


def _kind(precision: str, is_integer: bool) -> str:
    return f"{precision}+int8" if is_integer else precision


@cache
def _isa_of(precision: str, available: str, is_integer: bool) -> str:
    used = {
        isa
        for kernel, isas in kernel_isas().items()
        if (precision == "bf16" or "bf16" not in kernel) and (is_integer or not _is_integer(kernel))
        for isa in isas
        if features(isa) <= features(available)
    }
    needed = frozenset[str]().union(*map(features, used))
    return next(isa for isa in isas_within(available) if needed <= features(isa))


def _is_integer(kernel: str) -> bool:
    """Whether only the operators of `_INTEGER` use a kernel."""
    return "int8" in kernel or kernel.startswith("expert_")


def why_lower(used: str) -> str:
    """Why kernels of a lower instruction set than the CPU's are used; "" if none are, and after the first call.

    A limit that the user has set by ENGINE_MAX_ISA is not reported.
    """
    cpu = cpu_features()
    if cpu.isa == cpu.highest_isa or used != cpu.isa or used in _told:
        return ""
    _told.add(used)
    return (
        f"this CPU has {cpu.highest_isa}, and the engine was built without its kernels: the ones for {cpu.isa} are "
        "used; "
        "reinstall engine-sdk on this machine, or with ENGINE_ISAS=all"
    )


def _multiplies_integers(graph: Model) -> bool:
    """Whether the graph, or a body in it, has a node with an integer kernel."""
    return any(
        node.op_type in _INTEGER or any(_multiplies_integers(body) for body in node.bodies.values())
        for node in graph.ordered_nodes()
    )
