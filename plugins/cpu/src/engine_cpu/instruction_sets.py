"""Which instruction set a network is compiled for: the least that gives it the kernels it would have on this CPU."""

from __future__ import annotations

from engine.native import built_isas, kernel_isas


def needed_isa(precision: str, available: str) -> str:
    """The lowest instruction set with the very kernels that networks of this precision have with `available`.

    Their blobs, whose packed weights are of one instruction set, run on all CPUs that have it.
    """
    if precision == "bf16":
        return available
    order = built_isas()
    known = order[: order.index(available) + 1]
    used = {isa for kernel, isas in kernel_isas().items() if "bf16" not in kernel for isa in isas if isa in known}
    return max(used, key=order.index)
