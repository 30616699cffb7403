"""Why a device has no kernel for a node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node has no kernel.

    `cause` is one of "op", "element type", "shape", "attribute", "dynamic shape", "constant"; `reason` says what was
    found and what is expected.
    """

    cause: str
    reason: str
