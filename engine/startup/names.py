"""Names of packages that are loaded at their first use, so that a process imports only the modules that it runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.startup.collector import paused_collector


def names_on_demand(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package (PEP 562): each module of `homes` has the names that it gives the package.

    The package imports the same names for type checkers, and sets the function otherwise:

        if TYPE_CHECKING:
            from engine.runtime.port import Port
        else:
            __getattr__ = names_on_demand(__name__, {"engine.runtime.port": ["Port"]})
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with paused_collector():
            value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
