"""`Site`: points of a plan with several candidate kernels, and their choices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from engine.ir import Node
from engine.startup import dataclass

_log = logging.getLogger("engine.opencl")
_B = TypeVar("_B")
"""The builder of plans."""


@dataclass(frozen=True, slots=True)
class Site(Generic[_B]):
    """A problem and its candidates.

    Attributes:
        key: everything that affects which candidate is fastest: operator, shapes, strides, element type, epilogue; not
            the node, so that equal layers share it.
        candidates: at least one, the default first; identified by `str`, which is stable across versions.
        launch: adds the launches of a candidate to a plan.
        node: one of its nodes, for messages.
    """

    key: str
    candidates: tuple[Any, ...]
    launch: Callable[[_B, Any], None]
    node: Node

    def find(self, text: str) -> Any | None:
        """The candidate with this text; None if there is none."""
        return next((candidate for candidate in self.candidates if str(candidate) == text), None)

    def chosen(self, choices: Mapping[str, str]) -> Any:
        """The candidate chosen for this site, or otherwise the default."""
        text = choices.get(self.key)
        if text is None:
            return self.candidates[0]
        candidate = self.find(text)
        if candidate is None:
            _log.warning("OPENCL: %r is not a candidate for %s; the default is used", text, self.key)
            return self.candidates[0]
        return candidate
