"""Plugins for the plugin API before the current one: their old hooks are called, and the current ones are required of
plugins for the current one.

If these fail, a vendor's plugin loses a hook without a word when its user updates the engine.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import pytest

from engine import Core
from engine.cli.main import main
from engine.errors import PluginApiError, PluginContractError
from engine.plugin_api import API_VERSION, Config, ExecutableNetwork, Model, Plugin
from tests.core.conftest import ScaleNetwork, ScalePlugin


class Networks:
    """Plugins whose networks have a hook of a name, which counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def plugin(self, api: int, *hooks: str) -> type[Plugin]:
        methods = {hook: lambda network, hook=hook: self.calls.append(hook) for hook in hooks}
        kind = type("Network", (ScaleNetwork,), methods)

        def compile_model(plugin: Any, model: Model, config: Config) -> ExecutableNetwork:
            made: ExecutableNetwork = kind(plugin, config, model, np.ones(1, np.float32))
            return made

        return type("Versioned", (ScalePlugin,), {"api_version": api, "compile_model": compile_model})


def test_the_old_hook_of_an_older_plugin_is_called(model: onnx.ModelProto) -> None:
    networks, core = Networks(), Core()
    core.register_plugin("OLD", networks.plugin(1, "release"))
    core.register_plugin("BOTH", networks.plugin(1, "release", "release_caches"))
    core.register_plugin("NEW", networks.plugin(2, "release_caches"))
    core.register_plugin("NONE", networks.plugin(1))
    for device in ("OLD", "BOTH", "NEW", "NONE"):
        core.compile_model(model, device).release_memory()
    assert networks.calls == ["release", "release", "release_caches"]


def test_newer_hooks_are_not_called_on_an_older_plugin(model: onnx.ModelProto) -> None:
    """Its methods of these names are its own."""
    networks, core, blob = Networks(), Core(), io.BytesIO()
    plugin = networks.plugin(1, "preferences")
    plugin.check_blob = lambda *_: networks.calls.append("check_blob")  # type: ignore[assignment, method-assign]
    core.register_plugin("OLD", plugin)
    core.compile_model(model, "OLD").export_model(blob)
    assert core.check_blob(blob.getvalue()).compatible
    assert networks.calls == []


def test_a_current_plugin_with_an_old_hook_is_told(model: onnx.ModelProto) -> None:
    core = Core()
    core.register_plugin("STALE", Networks().plugin(API_VERSION, "release"))
    said = (
        r"STALE: api_version is 2, but Network has a hook of API 1: ExecutableNetwork\.release is called release_caches"
    )
    with pytest.raises(PluginContractError, match=said):
        core.compile_model(model, "STALE")


def test_what_has_to_be_updated_is_listed(core: Core, scale: type[ScalePlugin]) -> None:
    assert core.get_versions("SCALE")["SCALE"].outdated == ""
    scale.api_version = API_VERSION - 1
    assert "is called release_caches" in core.get_versions("SCALE")["SCALE"].outdated


def test_devices_shows_plugins_for_other_apis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scale: type[ScalePlugin]
) -> None:
    class WithOthers(Core):
        def __init__(self) -> None:
            super().__init__()
            self.register_plugin("OLD", type("Old", (scale,), {"api_version": API_VERSION - 1}))
            self.register_plugin("FUTURE", type("Future", (scale,), {"api_version": 99}))

    monkeypatch.setattr("engine.core.Core", WithOthers)
    assert main(["devices"]) == 0
    shown = capsys.readouterr().out
    assert f"OLD works, and its plugin has to be updated: it was written for plugin API {API_VERSION - 1}" in shown
    assert "\nFUTURE cannot be used: " in shown
    assert "it was written for plugin API 99" in shown
    assert main(["devices", "OLD"]) == 0
    assert "its plugin has to be updated" in capsys.readouterr().out
    with pytest.raises(PluginApiError, match="a newer engine with API 99"):
        WithOthers().get_property("FUTURE", "FULL_DEVICE_NAME")
