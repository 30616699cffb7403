"""`Site`: places of a plan for which a lowering offers several kernels, and what was chosen for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from engine.ir import Node

_log = logging.getLogger("engine.opencl")
_B = TypeVar("_B")
"""The builder of plans."""


@dataclass(frozen=True, slots=True)
class Site(Generic[_B]):
    """What is computed, and the ways to compute it.

    Attributes:
        key: says all that decides which candidate is fastest: operator, shapes, strides, element type, epilogue; not
            the node, so that equal layers are one.
        candidates: at least one, the default first; `str` of one tells it apart, in all versions alike.
        launch: adds what a candidate runs to a plan.
        node: one that it is for, for messages.
    """

    key: str
    candidates: tuple[Any, ...]
    launch: Callable[[_B, Any], None]
    node: Node

    def find(self, text: str) -> Any | None:
        """The candidate of that text; None where it is not offered."""
        return next((candidate for candidate in self.candidates if str(candidate) == text), None)

    def chosen(self, choices: Mapping[str, str]) -> Any:
        """The candidate that was chosen for this site, else the default."""
        text = choices.get(self.key)
        if text is None:
            return self.candidates[0]
        candidate = self.find(text)
        if candidate is None:
            _log.warning("OPENCL: %r is not a candidate for %s; the default is used", text, self.key)
            return self.candidates[0]
        return candidate
