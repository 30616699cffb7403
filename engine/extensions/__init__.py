"""Extension operators: users' operators that models use like ONNX's, and the libraries with their kernels.

The names are loaded at first use: a core imports no operators before it reads a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.extensions.extension import Extension
    from engine.extensions.extension_set import REQUIREMENT, ExtensionInfo, ExtensionSet, missing_reasons
    from engine.extensions.sources import ExtensionSource, resolve
    from engine.ops.extension import Operator
else:
    __getattr__ = names_on_demand(__name__, {
        "engine.extensions.extension": ["Extension"],
        "engine.extensions.extension_set": ["REQUIREMENT", "ExtensionInfo", "ExtensionSet", "missing_reasons"],
        "engine.extensions.sources": ["ExtensionSource", "resolve"],
        "engine.ops.extension": ["Operator"],
    })  # fmt: skip

__all__ = [
    "REQUIREMENT", "Extension", "ExtensionInfo", "ExtensionSet", "ExtensionSource", "Operator", "missing_reasons",
    "resolve",
]  # fmt: skip
