"""Operators on this device: a class each, in the file of its family. Every file in here is loaded."""

import importlib
import pkgutil

from engine_opencl.lowering.registry import LOWERINGS, OpenclDecisions, OpenclGraph, OpLowering, lowers

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["LOWERINGS", "OpLowering", "OpenclDecisions", "OpenclGraph", "lowers"]
