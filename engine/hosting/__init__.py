"""The engine's part of each plugin and network: configuration, metrics, executors, requests, calls and export.

`engine.plugin_api`, for plugin authors, defines the hooks; this package implements the rest.
"""

from typing import TYPE_CHECKING

from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.hosting.memory import MemoryForecast
    from engine.hosting.network import Features, HostedNetwork, check_interface
    from engine.hosting.plugin import HostedPlugin
    from engine.hosting.summary import NodeCounts, remarks_of
    from engine.hosting.version import API_VERSION, engine_version
    from engine.hosting.wrapping import not_initialised, plugin_errors, wrong_return
else:
    __getattr__ = names_on_demand(__name__, {
        "engine.hosting.memory": ["MemoryForecast"],
        "engine.hosting.network": ["Features", "HostedNetwork", "check_interface"],
        "engine.hosting.plugin": ["HostedPlugin"],
        "engine.hosting.summary": ["NodeCounts", "remarks_of"],
        "engine.hosting.version": ["API_VERSION", "engine_version"],
        "engine.hosting.wrapping": ["not_initialised", "plugin_errors", "wrong_return"],
    })  # fmt: skip

__all__ = [
    "API_VERSION",
    "Features",
    "HostedNetwork",
    "HostedPlugin",
    "MemoryForecast",
    "NodeCounts",
    "check_interface",
    "engine_version",
    "not_initialised",
    "plugin_errors",
    "remarks_of",
    "wrong_return",
]
