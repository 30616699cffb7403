"""The examination of everything, and its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from engine.cli.health.devices import LIMIT, TriedPlugin, examine_devices
from engine.cli.health.findings import Finding, Level
from engine.cli.health.machine import Machine, examine_machine
from engine.cli.health.surroundings import Cache, examine_caches, examine_variables
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The examined machine and devices, and the problems found."""

    machine: Machine
    plugins: tuple[TriedPlugin, ...]
    caches: tuple[Cache, ...]
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether no problems were found; notes do not count."""
        return all(finding.level is not Level.PROBLEM for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The report as values for JSON, with "healthy" first."""
        return {"healthy": self.is_healthy, **asdict(self)}


def examine(devices: Sequence[str] = (), limit: float = LIMIT) -> HealthReport:
    """Examine the machine, the caches, and the plugins: all, or the ones named in `devices`.

    Each plugin is tried in a process of its own for at most `limit` seconds.
    """
    machine, findings = examine_machine()
    caches, of_caches = examine_caches()
    # Without the native core, every plugin fails for the same reason.
    plugins, of_plugins = examine_devices(devices, limit) if machine.isa else ((), [])
    return HealthReport(machine, plugins, tuple(caches), (*findings, *of_plugins, *of_caches, *examine_variables()))
