"""The cases of the operator suite: nodes with inputs, in one file per family of operators.

`engine.testing.OperatorSuite` runs every case on a device against the reference evaluator, tests compare the reference
evaluator with onnxruntime for the same cases, and benchmarks time them. A new line in a family's file adds a case to
all of these. Importing this package computes nothing: a case creates its inputs on request.
"""

from __future__ import annotations

import functools
import pkgutil
from importlib import import_module

from engine.ops.cases.case import OperatorCase

__all__ = ["OperatorCase", "all_cases"]


@functools.cache
def all_cases() -> dict[str, OperatorCase]:
    """Every case by name, family by family."""
    cases: dict[str, OperatorCase] = {}
    for module in pkgutil.iter_modules(__path__):
        for case in getattr(import_module(f"{__name__}.{module.name}"), "CASES", ()):
            if cases.setdefault(case.name, case) is not case:
                raise ValueError(f"two cases have the name {case.name!r}")
    return cases
