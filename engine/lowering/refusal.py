"""Why a device has no kernel for a node."""

from __future__ import annotations

from engine.plugin_api import RefusalCause
from engine.startup import dataclass

__all__ = ["Refusal", "RefusalCause"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node has no kernel: the cause, for programs, and a message with what was found and expected."""

    cause: RefusalCause
    reason: str
