"""Operators on this device: a class each, in the file of its family. Every file here is loaded."""

import importlib
import pkgutil

from engine_opencl.lowering.registry import OpLowering, Refusal, find_lowering, lowers, refusal

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["OpLowering", "Refusal", "find_lowering", "lowers", "refusal"]
