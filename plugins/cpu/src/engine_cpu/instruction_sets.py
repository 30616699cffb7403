"""Which instruction set a network is compiled for: the least that gives it the kernels it would have on this CPU."""

from __future__ import annotations

from engine.native import isas_within, kernel_isas


def needed_isa(precision: str, available: str) -> str:
    """The lowest instruction set with the very kernels that networks of this precision have with `available`.

    Their blobs, whose packed weights are of one instruction set, run on all CPUs that have it.
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
