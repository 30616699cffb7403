"""The lowerings of native operators, one file per family; all modules of this folder are imported."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from engine_cpu.lowering.registry import LOWERINGS, CpuDecisions, CpuGraph, OpLowering, decisions, lowers

__all__ = ["LOWERINGS", "CpuDecisions", "CpuGraph", "OpLowering", "decisions", "lowers"]

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
