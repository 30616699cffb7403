"""The table by which families of lowerings are imported: an operator that it lacks would have no kernel."""

from __future__ import annotations

import pkgutil
from collections import defaultdict
from importlib import import_module

from engine_cpu import lowering
from engine_cpu.lowering import LOWERINGS


def test_each_lowering_is_found_by_its_operators() -> None:
    for module in pkgutil.iter_modules(lowering.__path__):
        import_module(f"{lowering.__name__}.{module.name}")
    registered = defaultdict(set)
    for (domain, op_type), (found, _) in LOWERINGS._lowerings.items():
        registered[type(found).__module__.rpartition(".")[2]].add(f"{domain}.{op_type}" if domain else op_type)
    registered.pop("elementwise")  # imported in any case
    assert registered == {module: set(operators) for module, operators in lowering._FAMILIES.items()}
