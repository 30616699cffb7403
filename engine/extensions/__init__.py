"""Extension operators: users' operators that models use like ONNX's, and the libraries with their kernels.

The names are loaded at first use: a core imports no operators before it reads a model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.extensions.extension import Extension
    from engine.extensions.extension_set import REQUIREMENT, ExtensionInfo, ExtensionSet, missing_reasons
    from engine.extensions.sources import ExtensionSource, resolve
    from engine.ops.extension import Operator

__all__ = [
    "REQUIREMENT", "Extension", "ExtensionInfo", "ExtensionSet", "ExtensionSource", "Operator", "missing_reasons",
    "resolve",
]  # fmt: skip

_HOMES = {
    "Extension": "engine.extensions.extension",
    "Operator": "engine.ops.extension",
    **dict.fromkeys(("ExtensionSource", "resolve"), "engine.extensions.sources"),
    **dict.fromkeys(
        ("REQUIREMENT", "ExtensionInfo", "ExtensionSet", "missing_reasons"), "engine.extensions.extension_set"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
