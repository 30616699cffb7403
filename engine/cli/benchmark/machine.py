"""The circumstances of a measurement beside the model: the machine, the versions, the clocks."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.hosting import engine_version
from engine.native import cpu_features, default_isa
from engine.registry.installed import InstalledEntryPoints

if TYPE_CHECKING:
    from engine.plugin_api import ExecutableNetwork

SAME: Final = ("cpu", "logical_cores")
"""The keys that must be equal for the times of two runs to be comparable."""
_DRIVER: Final = "DRIVER_VERSION"
_CPUS: Final = Path("/sys/devices/system/cpu")


def describe_machine() -> dict[str, Any]:
    """The machine and its state now: processor, instruction set, cores, clocks, load, memory, operating system."""
    features = cpu_features()
    return {
        "cpu": _cpu_name() or features.model,
        "isa": default_isa(),
        "logical_cores": features.logical_cores,
        "usable_cores": features.usable_cores,
        "l2_bytes": features.l2_bytes,
        "l3_bytes": features.l3_bytes,
        "clocks_mhz": clocks(),
        "governor": _first_line(_CPUS / "cpu0/cpufreq/scaling_governor"),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "memory_bytes": _memory(),
        "system": platform.platform(),
    }


def describe_versions(network: ExecutableNetwork | None = None) -> dict[str, str]:
    """The versions of the engine, its plugins, Python, the packages that compute, and a network's driver or runtime."""
    driver = {}
    if network is not None and _DRIVER in network.plugin.declared:
        driver[network.plugin.name] = str(network.plugin.get_metric(_DRIVER, network.get_config("DEVICE_ID")))
    plugins = (text.rpartition(" ") for text, _ in InstalledEntryPoints().of("engine.plugins"))
    return {
        "engine": engine_version(),
        **{name: version for name, _, version in plugins if name != "engine-sdk"},
        "python": sys.version.split()[0],
        **{name: metadata.version(name) for name in ("numpy", "onnx")},
        **driver,
    }


def clocks() -> list[float]:
    """The clock of each logical core now, in MHz, as the system reports it; empty if it does not."""
    found = []
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "cpu MHz":
            found.append(round(float(value), 1))
    return found


def _cpu_name() -> str:
    names = (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    return next(names, "")


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def peak_memory() -> int | None:
    """The most memory that this process has had, in bytes; None if the system does not report it."""
    for line in _lines("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def _first_line(path: Path) -> str | None:
    return next(iter(_lines(path)), None)


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
