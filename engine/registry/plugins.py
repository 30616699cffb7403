"""`PluginRegistry`: finds plugins by entry point, creates each on first use, and isolates broken ones."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from engine.errors import (
    DeviceNotFoundError,
    PluginApiError,
    PluginConflictError,
    PluginContractError,
    PluginError,
    PluginLoadError,
)
from engine.hosting.api_changes import OLDEST_API_VERSION, why_outdated
from engine.hosting.version import installed_distributions
from engine.plugin_api import API_VERSION, CoreHandle, Plugin
from engine.registry.installed import InstalledEntryPoints
from engine.runtime.lifecycle import Participant, lifecycle
from engine.startup import dataclass, paused_collector

GROUP: Final = "engine.plugins"
"""The entry-point group: each entry maps a device name to a `Plugin` subclass."""

PluginSource: TypeAlias = type[Plugin] | Callable[[CoreHandle], Plugin] | str
"""A subclass of `Plugin`, a function that makes one, or "module:name" of either."""

_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_TARGET: Final = re.compile(r"[\w.]+:[\w.]+")
_log = logging.getLogger("engine.registry")
_told: set[PluginOrigin] = set()
"""The plugins that were reported to be outdated."""


@dataclass(frozen=True, slots=True)
class PluginOrigin:
    """The origin of a plugin: an object in a module, of a distribution unless registered at run time."""

    target: str
    distribution: str = ""

    def __str__(self) -> str:
        return f"{self.target} of {self.distribution}" if self.distribution else f"{self.target}, registered here"


class PluginRegistry(Participant):
    """The plugins of one core, each imported and created on first use. Thread-safe.

    A plugin that cannot be imported or created, or that violates the contract, stays unusable until `unload`:
    each `get` raises the same failure, and no other plugin is affected.

    Args:
        core: passed to every plugin on creation.
        installed: the entry points of the environment.
    """

    def __init__(self, core: CoreHandle, installed: InstalledEntryPoints | None = None) -> None:
        self._core = core
        self._installed = installed or InstalledEntryPoints()
        self._entries: dict[str, _Entry] | None = None
        # One lock for all plugins: those that request each other while being created cannot deadlock.
        self._lock = threading.RLock()
        lifecycle.track(self)

    @property
    def names(self) -> list[str]:
        """The names of all plugins, usable or not: installed ones sorted, then those registered here."""
        return list(self._found())

    def origins(self, name: str) -> tuple[PluginOrigin, ...]:
        """The origin of the plugin `name`; several origins if they conflict. Raises `DeviceNotFoundError`."""
        return self._entry(name).origins

    @property
    def registered(self) -> dict[str, str]:
        """What was registered here, by name: "module:name", or a description of an object without one."""
        return {name: entry.origins[0].target for name, entry in self._found().items() if entry.is_registered}

    def get(self, name: str) -> Plugin:
        """Return the plugin `name`, creating it on first use.

        Raises `DeviceNotFoundError` if there is none, `PluginConflictError` if two distributions claim the
        name, `PluginLoadError` with the original cause if it cannot be created.
        """
        entry = self._entry(name)
        plugin = entry.plugin
        if plugin is not None:
            return plugin
        with self._lock:
            if entry.plugin is None:
                entry.plugin = self._create(entry)
            return entry.plugin

    def register(self, name: str, source: PluginSource) -> None:
        """Add a plugin under a name, which replaces the `name` attribute of a class.

        Raises `PluginError` for a malformed name or source, `PluginConflictError` if the name is taken and has
        not been unloaded.
        """
        if not is_device_name(name):
            raise PluginError(
                f"cannot register a plugin as {name!r}: a device's name is an upper-case letter followed by "
                "upper-case letters, digits and underscores"
            )
        if not callable(source) and not (isinstance(source, str) and _TARGET.fullmatch(source)):
            raise PluginError(
                f"cannot register plugin {name}: expected a subclass of engine.plugin_api.Plugin, a function that "
                f'makes a plugin, or "module:name" of either; got {source!r}'
            )
        with self._lock:
            entries = self._found()
            taken = entries.get(name)
            if taken is not None and not taken.is_unloaded:
                raise PluginConflictError(
                    f"device {name} is provided already, by {_listed(taken.origins)}; register under another name, "
                    f"or call unload_plugin({name!r}) first"
                )
            origin = PluginOrigin(source if isinstance(source, str) else _described(source))
            self._entries = {**entries, name: _Entry(name, source, (origin,), is_registered=True)}

    def unload(self, name: str) -> None:
        """Discard the plugin's instance or its failure; it is created again on next use.

        Its networks and requests stay usable. The name may be registered again. Raises `DeviceNotFoundError` if the
        plugin does not exist.
        """
        with self._lock:
            entry = self._entry(name)
            fresh = _Entry(name, entry.source, entry.origins, entry.is_registered)
            fresh.is_unloaded = True
            self._entries = {**self._found(), name: fresh}

    # -- finding ------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> _Entry:
        entries = self._found()
        if name not in entries:
            raise DeviceNotFoundError(f"no plugin for device {name!r}; plugins: {', '.join(entries) or 'none'}")
        return entries[name]

    def _found(self) -> dict[str, _Entry]:
        """All entries; replaced rather than changed in place, so that readers need no lock."""
        entries = self._entries
        if entries is not None:
            return entries
        with self._lock:
            if self._entries is None:
                self._entries = _discover(self._installed)
            return self._entries

    # -- creating -----------------------------------------------------------------------------------------

    def _create(self, entry: _Entry) -> Plugin:
        if len(entry.origins) > 1:
            both = installed_distributions()
            if len(both) > 1 and any(each.distribution.startswith("engine-runtime ") for each in entry.origins):
                raise PluginConflictError(
                    f"{' and '.join(both)} are both installed, and have the same files, so that device {entry.name} is "
                    f"claimed twice: pip uninstall {' '.join(both)} engine-plugin-cpu, then install one of them again"
                )
            raise PluginConflictError(
                f"device {entry.name} is claimed by {_listed(entry.origins)}; uninstall all but one of them, or "
                "register one under another name with register_plugin"
            )
        if entry.failure is None:
            if entry.is_creating:
                raise PluginLoadError(f"plugin {entry.name} requests itself while it is being created")
            entry.is_creating = True
            try:
                return self._created(entry)
            except (Exception, SystemExit) as e:
                entry.failure = e
                _log.warning("plugin %s (%s) is not used: %s", entry.name, entry.origins[0], _said(e))
            finally:
                entry.is_creating = False
        kind = PluginApiError if isinstance(entry.failure, PluginApiError) else PluginLoadError
        raise kind(
            f"plugin {entry.name} ({entry.origins[0]}) cannot be loaded: {_said(entry.failure)}; "
            f"after fixing it, restart Python or call unload_plugin({entry.name!r})"
        ) from entry.failure

    def _created(self, entry: _Entry) -> Plugin:
        if not is_device_name(entry.name):
            raise PluginContractError(
                f"the entry point's name {entry.name!r} is not a device name: an upper-case letter followed by "
                "upper-case letters, digits and underscores"
            )
        with paused_collector():  # importing a plugin creates many objects, which all stay
            made = _resolved(entry.source) if isinstance(entry.source, str) else entry.source
        if isinstance(made, type):
            plugin = _checked_class(made, entry)(self._core)
        elif entry.is_registered and callable(made):
            plugin = made(self._core)
        else:
            raise PluginContractError(f"expected a subclass of engine.plugin_api.Plugin; got {_described(made)}")
        _check_plugin(plugin, entry)
        _warn_if_outdated(plugin, entry.origins[0])
        return plugin

    def _after_fork(self) -> None:
        """Become usable in a child process, even if a thread of the parent was creating a plugin."""
        self._lock = threading.RLock()
        self._installed.renew_lock()
        for entry in (self._entries or {}).values():
            entry.is_creating = False


def is_device_name(name: object) -> bool:
    """Whether `name` is a valid device name: an upper-case letter, then upper-case letters, digits, underscores."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class _Entry:
    """The plugin of one name. `source` is called, or imported and called, to create it."""

    __slots__ = ("failure", "is_creating", "is_registered", "is_unloaded", "name", "origins", "plugin", "source")

    def __init__(self, name: str, source: PluginSource, origins: tuple[PluginOrigin, ...], is_registered: bool) -> None:
        self.name = name
        self.source = source
        self.origins = origins
        self.is_registered = is_registered
        self.is_unloaded = False
        self.is_creating = False
        self.plugin: Plugin | None = None
        self.failure: BaseException | None = None


def _discover(installed: InstalledEntryPoints) -> dict[str, _Entry]:
    claims: dict[str, list[PluginOrigin]] = {}
    for distribution, entry_points in installed.of(GROUP):
        for entry_point in entry_points:
            origin = PluginOrigin(entry_point.value, distribution)
            known = claims.setdefault(entry_point.name, [])
            if origin not in known:
                known.append(origin)
    return {
        name: _Entry(name, claims[name][0].target, tuple(claims[name]), is_registered=False) for name in sorted(claims)
    }


def _resolved(target: str) -> object:
    """The object at "module:name" (or "module:name.of.attribute", as entry points allow)."""
    match = _TARGET.match(target)
    if match is None:
        raise PluginContractError(f'expected "module:name"; got {target!r}')
    module, _, attributes = match.group().partition(":")
    found: object = importlib.import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    return found


def _checked_class(made: type, entry: _Entry) -> type[Plugin]:
    if not issubclass(made, Plugin):
        raise PluginContractError(f"expected a subclass of engine.plugin_api.Plugin; it is {_described(made)}")
    if inspect.isabstract(made):
        raise PluginContractError(f"{made.__name__} does not define {', '.join(sorted(made.__abstractmethods__))}")
    _check_versions(made)
    own_name = getattr(made, "name", None)
    if own_name == entry.name:
        return made
    if not entry.is_registered:
        raise PluginContractError(
            f"the entry point is called {entry.name!r} and {made.__name__}.name is {own_name!r}; make them equal"
        )
    # A subclass, so that everything that the constructor derives from the name is right.
    return type(made.__name__, (made,), {"name": entry.name, "__module__": made.__module__, "__doc__": made.__doc__})


def _check_versions(made: type[Plugin]) -> None:
    api_version, version = getattr(made, "api_version", None), getattr(made, "version", None)
    if not isinstance(api_version, int) or isinstance(api_version, bool):
        raise PluginContractError(
            f"{made.__name__}.api_version must be the API_VERSION, an int, that the plugin was written for "
            f"(currently {API_VERSION}); got {api_version!r}"
        )
    if not OLDEST_API_VERSION <= api_version <= API_VERSION:
        engine = "a newer engine" if api_version > API_VERSION else "an older engine"
        raise PluginApiError(
            f"it was written for plugin API {api_version}, and this engine runs plugins for API {OLDEST_API_VERSION} "
            f"and {API_VERSION}; install a version of the plugin for one of these, or {engine} with API {api_version}"
        )
    if not isinstance(version, str) or not version:
        raise PluginContractError(f"{made.__name__}.version must be the plugin's version, a string; got {version!r}")


def _check_plugin(plugin: object, entry: _Entry) -> None:
    if not isinstance(plugin, Plugin):
        raise PluginContractError(f"{_described(entry.source)} made {_described(plugin)}; expected a Plugin")
    _check_versions(type(plugin))
    if plugin.name != entry.name:
        raise PluginContractError(
            f"{_described(entry.source)} made a plugin whose name is {plugin.name!r}; expected {entry.name!r}"
        )
    if not hasattr(plugin, "declared"):
        raise PluginContractError(f"{type(plugin).__name__}.__init__ must call super().__init__(core)")


def _warn_if_outdated(plugin: Plugin, origin: PluginOrigin) -> None:
    """Log once in this process what the author of a plugin for the API before has to change."""
    why = why_outdated(plugin.api_version)
    if why and origin not in _told:
        _told.add(origin)
        _log.warning("plugin %s (%s) works, and has to be updated: %s", plugin.name, origin, why)


def _described(made: object) -> str:
    if isinstance(made, str):
        return made
    if isinstance(made, type) or inspect.isroutine(made):
        return f"{made.__module__}:{made.__qualname__}"
    return f"an object of {type(made).__module__}:{type(made).__qualname__}"


def _listed(origins: tuple[PluginOrigin, ...]) -> str:
    return " and ".join(map(str, origins))


def _said(error: BaseException) -> str:
    """The error's message; preceded by its class unless it is an `EngineError`."""
    if isinstance(error, PluginError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
