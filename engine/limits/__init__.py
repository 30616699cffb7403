"""Limits of a compilation and of its network: how much may be folded, how large a value may be, and when to stop."""

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
from engine.limits.watching import CancelSignal, Progress, check_cancelled, report_progress, step, watched

__all__ = [
    "LARGE_BYTES",
    "CancelSignal",
    "FoldingBudget",
    "Limits",
    "OverBudgetError",
    "Progress",
    "available_memory",
    "check_bytes",
    "check_cancelled",
    "check_growth",
    "check_planned",
    "compilation",
    "current_budget",
    "current_limits",
    "report_progress",
    "shown_bytes",
    "step",
    "total_memory",
    "watched",
]
