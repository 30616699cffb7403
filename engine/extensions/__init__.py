"""Extension operators: users' operators that models use as those of ONNX, and the libraries with their kernels."""

from engine.extensions.extension import Extension
from engine.extensions.extension_set import REQUIREMENT, ExtensionInfo, ExtensionSet, missing_reasons
from engine.extensions.sources import ExtensionSource, resolve
from engine.ops.extension import Operator

__all__ = [
    "REQUIREMENT", "Extension", "ExtensionInfo", "ExtensionSet", "ExtensionSource", "Operator", "missing_reasons",
    "resolve",
]  # fmt: skip
