"""How the core calls a plugin: with a complete configuration, and with checks of the return values."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from engine.blob import BlobReader
from engine.core.settings import exported_config
from engine.errors import PluginContractError
from engine.hosting import API_VERSION, not_initialised, plugin_errors, wrong_return
from engine.hosting.api_changes import outdated_hooks
from engine.limits import Limits, compilation
from engine.plugin_api import ExecutableNetwork, Plugin, RemoteContext
from engine.properties import (
    MAX_FOLDED_BYTES,
    MAX_FOLDED_WORK,
    MAX_TENSOR_BYTES,
    MEMORY_BUDGET,
    NO_LIMIT,
    Config,
)
from engine.runtime.lifecycle import lifecycle

if TYPE_CHECKING:
    from engine.ir import Model
    from engine.plugin_api import QueryResult


def compile_network(
    plugin: Plugin, model: Model, config: Mapping[str, object] | None = None, context: RemoteContext | None = None
) -> ExecutableNetwork:
    """Compile with the device's defaults overridden by `config`; only `EngineError`s are raised."""
    merged = _complete_config(plugin, plugin.config.merged(config))
    what = f"compiling `{model.name}`"
    with lifecycle.working(what), plugin_errors(plugin.name, what), _limited(merged, model):
        if context is None:
            network = plugin.compile_model(model, merged)
        else:
            network = plugin.compile_in_context(model, merged, context)
    made = _checked_network(plugin, network, "compile_model" if context is None else "compile_in_context", context)
    _require_budget(made, merged, model)
    return made


def import_network(
    plugin: Plugin, blob: BlobReader, config: Mapping[str, object] | None = None, context: RemoteContext | None = None
) -> ExecutableNetwork:
    """Import with the device's defaults, overridden by the exported configuration, overridden by `config`.

    The blob's manifest must have been checked for this plugin. Only `EngineError`s are raised.
    """
    stated = exported_config(plugin, blob.manifest.config)
    exported = Config.from_json(plugin.declared, stated, where=plugin.name)
    merged = _complete_config(plugin, plugin.config.merged(exported).merged(config))
    what = "importing a network"
    with lifecycle.working(what), plugin_errors(plugin.name, what), _limited(merged):
        if context is None:
            network = plugin.import_network(blob, merged)
        else:
            network = plugin.import_in_context(blob, merged, context)
    made = _checked_network(plugin, network, "import_network" if context is None else "import_in_context", context)
    _require_budget(made, merged)
    return made


def create_context(
    plugin: Plugin, device: str, config: Mapping[str, object], handles: Mapping[str, object]
) -> RemoteContext:
    """Make a context with the device's defaults overridden by `config`; only `EngineError`s are raised."""
    merged = _complete_config(plugin, plugin.config.merged(config))
    with plugin_errors(plugin.name, "creating a context"):
        context = plugin.create_context(device, merged, handles)
    if not isinstance(context, RemoteContext):
        raise wrong_return(plugin.name, "create_context", context, "RemoteContext")
    if not hasattr(context, "handles"):
        raise not_initialised(plugin.name, context, "plugin, device, handles")
    if context.plugin is not plugin:
        raise PluginContractError(f"plugin {plugin.name}: {type(context).__name__} must be made with this plugin")
    return context


def query_network(plugin: Plugin, model: Model, config: Mapping[str, object] | None = None) -> QueryResult:
    """Query, and check that the answer covers exactly the model's nodes; only `EngineError`s are raised."""
    from engine.ir import Constant, Parameter, Result
    from engine.placement.consistency import inconsistencies
    from engine.plugin_api import QueryResult

    merged = _complete_config(plugin, plugin.config.merged(config))
    nodes = model.ordered_nodes()
    with plugin_errors(plugin.name, f"querying `{model.name}`"), _limited(merged, model):
        answer = plugin.query_model(model, merged)
    if not isinstance(answer, QueryResult):
        raise wrong_return(plugin.name, "query_model", answer, "QueryResult")
    if model.ordered_nodes() != nodes:
        raise PluginContractError(f"plugin {plugin.name}: query_model changed `{model.name}`; it must clone the model")
    names = {node.friendly_name for node in nodes}
    operations = {node.friendly_name for node in nodes if not isinstance(node, (Parameter, Constant, Result))}
    answered = answer.nodes.keys() | {name for atom in answer.atoms for name in atom}
    if wrong := (operations - answer.nodes.keys()) | (answered - names):
        listed = ", ".join(sorted(wrong)[:10])
        raise PluginContractError(
            f"plugin {plugin.name}: query_model must report exactly the model's operations; see {listed}"
        )
    if answer.placement is not None and (faults := inconsistencies(answer.placement)):
        listed = "; ".join(faults[:3])
        raise PluginContractError(f"plugin {plugin.name}: query_model reports an inconsistent placement: {listed}")
    return answer


def _complete_config(plugin: Plugin, config: Config) -> Config:
    plugin.device_id_of(config)
    return config


def _limited(config: Config, model: Model | None = None) -> AbstractContextManager[object]:
    """The compilation of a network within the limits of its configuration."""
    limits = Limits(config[MAX_FOLDED_BYTES], config[MAX_FOLDED_WORK], config[MAX_TENSOR_BYTES])
    if model is None:
        return compilation(limits)
    from engine.ir import stored_bytes

    return compilation(limits, lambda: stored_bytes(model))


def _require_budget(network: ExecutableNetwork, config: Config, model: Model | None = None) -> None:
    """Raise `MemoryBudgetError` if the network takes more than MEMORY_BUDGET, where the device has this key."""
    if MEMORY_BUDGET.name in config and config[MEMORY_BUDGET] < NO_LIMIT:
        from engine.hosting.budget import require_budget

        require_budget(network, model)


def _checked_network(plugin: Plugin, network: object, method: str, context: RemoteContext | None) -> ExecutableNetwork:
    if not isinstance(network, ExecutableNetwork):
        raise wrong_return(plugin.name, method, network, "ExecutableNetwork")
    if not hasattr(network, "signature"):
        raise not_initialised(plugin.name, network, "plugin, config, source")
    if plugin.api_version == API_VERSION and (old := outdated_hooks(network, ExecutableNetwork)):
        raise PluginContractError(
            f"plugin {plugin.name}: api_version is {API_VERSION}, but {type(network).__name__} has a hook of API "
            f"{API_VERSION - 1}: {old[0]}; rename it"
        )
    if context is not None:
        network.use_context(context)
    return network
