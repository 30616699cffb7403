"""The instruction set that a network is compiled for: the lowest with the same kernels as on this CPU."""

from __future__ import annotations

from engine.native import isas_within, kernel_isas


def needed_isa(precision: str, available: str) -> str:
    """The lowest instruction set with the same kernels for networks of this precision as `available`.

    Blobs have weights packed for one instruction set, and run on all CPUs that support it.
    """
    known = isas_within(available)
    used = {
        isa
        for kernel, isas in kernel_isas().items()
        if precision == "bf16" or "bf16" not in kernel
        for isa in isas
        if isa in known
    }
    return next(isa for isa in known if used.issubset(isas_within(isa)))
