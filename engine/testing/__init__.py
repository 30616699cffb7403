"""Test tools for plugin authors: the behaviour suite, and real networks with answers (`engine.testing.models`).

The following tests requests, properties, export, import and errors of a plugin, and every operator that it supports:

    from engine.testing import BehaviourSuite, OperatorSuite

    class TestExample(BehaviourSuite):
        device = "EXAMPLE"

    class TestExampleOperators(OperatorSuite):
        device = "EXAMPLE"

Only the suites need pytest; the models do not.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if "pytest" in sys.modules:
    # Registered before any module of the suite is imported, so that pytest rewrites its asserts to show their values.
    # Only needed while pytest runs; the models do not need pytest.
    sys.modules["pytest"].register_assert_rewrite("engine.testing.behaviour", "engine.testing.operators")

if TYPE_CHECKING:
    from engine.testing.behaviour import BehaviourSuite
    from engine.testing.operators import OperatorSuite

__all__ = ["BehaviourSuite", "OperatorSuite"]

_MODULES = {"BehaviourSuite": "engine.testing.behaviour", "OperatorSuite": "engine.testing.operators"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
