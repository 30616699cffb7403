"""The core of a plugin: networks that the plugin compiles through it are parts of an application's network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from engine.plugin_api import ExecutableNetwork, RemoteContext


class Compiling(Protocol):
    """The part of the core that plugins' cores need."""

    def compile_part(
        self, model: Any, device: str | RemoteContext | None = None, config: Mapping[str, object] | None = None
    ) -> ExecutableNetwork:
        """Compile like `Core.compile_model`, but without warnings for the application."""


class PluginCore:
    """A core that issues no warnings of its own: the network that contains a part reports its warnings."""

    def __init__(self, core: Compiling) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        if name == "_core":  # not made by __init__, as when it is copied
            raise AttributeError(name)
        return getattr(self._core, name)

    def compile_model(
        self, model: Any, device: str | RemoteContext | None = None, config: Mapping[str, object] | None = None
    ) -> ExecutableNetwork:
        """Compile like `Core.compile_model`, without a warning."""
        return self._core.compile_part(model, device, config)
