"""Limits of a compilation and of its network: how much may be folded, and how large a value may be."""

from engine.limits.budget import (
    FoldingBudget,
    Limits,
    OverBudgetError,
    compilation,
    current_budget,
    current_limits,
)
from engine.limits.memory import (
    LARGE_BYTES,
    available_memory,
    check_bytes,
    check_growth,
    check_planned,
    shown_bytes,
    total_memory,
)

__all__ = [
    "LARGE_BYTES",
    "FoldingBudget",
    "Limits",
    "OverBudgetError",
    "available_memory",
    "check_bytes",
    "check_growth",
    "check_planned",
    "compilation",
    "current_budget",
    "current_limits",
    "shown_bytes",
    "total_memory",
]
