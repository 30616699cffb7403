"""What plugin authors test with: the behaviour suite, and real networks with answers (`engine.testing.models`).

A plugin's whole test of requests, properties, export, import and errors is

    from engine.testing import BehaviourSuite

    class TestExample(BehaviourSuite):
        device = "EXAMPLE"

Only the suite needs pytest; the models do not.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if "pytest" in sys.modules:
    # Here, before any module of the suite can be imported: a failing check then shows its values, as an assert in a
    # test file does. Without pytest running there is nothing to rewrite, and the models do not need it.
    sys.modules["pytest"].register_assert_rewrite("engine.testing.behaviour")

if TYPE_CHECKING:
    from engine.testing.behaviour import BehaviourSuite

__all__ = ["BehaviourSuite"]


def __getattr__(name: str) -> Any:
    if name != "BehaviourSuite":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from engine.testing.behaviour import BehaviourSuite

    return BehaviourSuite
