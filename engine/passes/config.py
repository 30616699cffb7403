"""`PassConfig`: which passes of a pipeline run, and on which nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from engine.errors import PassError
from engine.ir import Node

if TYPE_CHECKING:
    from engine.passes.base import Pass

PassLike: TypeAlias = "type[Pass] | str"
NodeCallback: TypeAlias = "Callable[[Node], bool]"


class PassConfig:
    """Switches of a pipeline, shared by a manager, its passes and the managers that they nest.

    Everything acts the same before and after a pass is registered. Passes are named by class or by name.
    """

    __slots__ = ("_callbacks", "_default", "_switches")

    def __init__(self) -> None:
        self._switches: dict[str, bool] = {}
        self._callbacks: dict[str, NodeCallback] = {}
        self._default: NodeCallback | None = None

    def enable(self, *passes: PassLike) -> None:
        """Run these passes, also where they are registered as disabled."""
        for item in passes:
            self._switches[_name(item)] = True

    def disable(self, *passes: PassLike) -> None:
        """Leave these passes out, wherever they are nested."""
        for item in passes:
            self._switches[_name(item)] = False

    def is_enabled(self, item: PassLike, by_default: bool = True) -> bool:
        """True where the pass runs; `by_default` is how it was registered."""
        return self._switches.get(_name(item), by_default)

    def set_callback(self, *passes: PassLike, callback: NodeCallback) -> None:
        """Let `callback(node)` decide, for these passes (or for all, without passes), which roots to leave alone.

        True leaves the node as it is. A pass asks through `self.transformation_callback(node)`.
        """
        if not passes:
            self._default = callback
        for item in passes:
            self._callbacks[_name(item)] = callback

    def callback(self, item: PassLike) -> NodeCallback | None:
        """The callback that was set for a pass, else the one for all passes, else None."""
        return self._callbacks.get(_name(item), self._default)


def _name(item: PassLike) -> str:
    if isinstance(item, str):
        return item
    name = getattr(item, "name", None)
    if not isinstance(item, type) or not isinstance(name, str):
        raise PassError(f"a pass is named by its class or its name, got {item!r}")
    return name
