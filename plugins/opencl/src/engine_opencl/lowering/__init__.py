"""The lowerings of operators: a class each, in the file of its family. All modules of this folder are imported."""

import importlib
import pkgutil

from engine_opencl.lowering.registry import (
    LOWERINGS,
    OpenclDecisions,
    OpenclGraph,
    OpenclTable,
    OpLowering,
    lowerings_of,
    lowers,
)

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = [
    "LOWERINGS", "OpLowering", "OpenclDecisions", "OpenclGraph", "OpenclTable", "lowerings_of", "lowers",
]  # fmt: skip
