"""The checks of `engine doctor`: the installed distributions, whether they work, and remedies for faults.

Devices are tried in processes of their own, which a driver may crash or block. Nothing of the engine that needs the
native core is imported in this process before that core has been tried.
"""

from engine.cli.health.findings import Finding, Level
from engine.cli.health.report import HealthReport, examine

__all__ = ["Finding", "HealthReport", "Level", "examine"]
