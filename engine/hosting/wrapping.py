"""Exception wrapping, and the errors for a plugin that violates the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine.errors import EngineError, PluginContractError, PluginError, PropertyError
from engine.properties import METRIC, PropertySet


@contextmanager
def plugin_errors(plugin: str, doing: str) -> Iterator[None]:
    """Pass on `EngineError`s, and wrap every other exception of a plugin in a `PluginError`.

    A `TimeoutError` also passes: a caller may limit the time by the handler of a signal.
    """
    try:
        yield
    except (EngineError, TimeoutError):
        raise
    except Exception as e:
        raise PluginError(f"plugin {plugin}: {doing} failed: {type(e).__name__}: {e}") from e


def not_initialised(plugin: str, made: object, arguments: str) -> PluginContractError:
    """The error for an object whose class does not call its base class's constructor."""
    name = type(made).__name__
    return PluginContractError(f"plugin {plugin}: {name}.__init__ must call super().__init__({arguments})")


def wrong_return(plugin: str, method: str, value: object, expected: str) -> PluginContractError:
    """The error for a hook that returned a value of the wrong type."""
    return PluginContractError(f"plugin {plugin}: {method} returned {type(value).__name__}, expected {expected}")


def metric_value(declared: PropertySet, name: str, ask: Callable[[], object], where: str) -> Any:
    """The value of metric `name` that `ask` returns; the declared default if that is None.

    Raises `PropertyError` listing the metrics, `PluginContractError` for a value that the declaration does not allow.
    """
    found = declared.require(name, METRIC, where=where)
    with plugin_errors(where, f"metric {name}"):
        value = ask()
    if value is None:
        value = found.default
    try:
        return found.validate(value)
    except PropertyError as e:
        raise PluginContractError(f"plugin {where} reports an invalid metric: {e}") from e
