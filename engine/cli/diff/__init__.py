"""Two devices, configurations or engines on one model: node by node on the same inputs, and where they part first."""

from engine.cli.diff.report import diff_page
from engine.cli.diff.search import Difference, find_difference
from engine.cli.diff.sides import Side, open_side
from engine.cli.diff.statistics import NodeDifference

__all__ = ["Difference", "NodeDifference", "Side", "diff_page", "find_difference", "open_side"]
