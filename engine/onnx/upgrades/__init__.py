"""Upgrades of nodes from old operator versions to the canonical one, for importers.

    version = resolve_version("Softmax", "", 11)                     # 11
    if needs_upgrade("Softmax", "", version):
        upgraded = upgrade_call(OldCall("Softmax", "", version, (x,), {}, 1, "probabilities"))

Every transition between two versions of an operator is either in `COMPATIBLE`, if an old call means the same in
the new version, or in `UPGRADES`, with a function that rewrites one call. All functions here are thread-safe.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from engine.ir import Output
from engine.onnx.opsets import canonical_version, resolve_version
from engine.onnx.upgrades import (
    control_flow,
    elementwise,
    ml,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    sampling,
    softmax,
    spectral,
    structure,
)
from engine.onnx.upgrades.call import UPGRADES, OldCall, Transition, Upgraded
from engine.onnx.upgrades.compatible import COMPATIBLE

__all__ = [
    "COMPATIBLE", "UPGRADES", "OldCall", "Transition", "Upgraded", "canonical_version", "needs_upgrade",
    "resolve_version", "upgrade_call",
]  # fmt: skip

# Imported because they register upgrades.
FAMILIES: Final = (
    control_flow, elementwise, ml, normalization, pooling, quantization, recurrent, reduction, sampling, softmax,
    spectral, structure,
)  # fmt: skip


def upgrade_call(call: OldCall) -> OldCall | Sequence[Output]:
    """`call` at the canonical version: one call, or the values that replace its outputs.

    Returns a call whose version is `canonical_version` of its (perhaps new) operator, or one value per output,
    computed by unnamed canonical nodes. For a call that needs no upgrade, only the version changes.

    Raises:
        ModelError: the call is not valid in its version.
        UnsupportedError: it is valid, but has no canonical form, or required facts of its inputs are unknown.
    """
    while True:
        step = _next_upgrade(call.op_type, call.domain, call.version)
        if step is None:
            break
        result = step.function(call)
        if not isinstance(result, OldCall):
            return result
        call = result
    version = canonical_version(call.op_type, call.domain)
    return call if call.version == version else call.replace(version=version)


@functools.cache
def needs_upgrade(op_type: str, domain: str, version: int) -> bool:
    """Whether any transition from `version` to the canonical one has an upgrade. About 100 ns when repeated."""
    return _next_upgrade(op_type, domain, version) is not None


def _next_upgrade(op_type: str, domain: str, version: int) -> Transition | None:
    for step in UPGRADES.get((domain, op_type), ()):
        if step.since >= version:
            return step
    return None
