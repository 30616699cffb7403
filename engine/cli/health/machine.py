"""The machine: versions, the processor, memory."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from engine.cli.health.findings import Finding, Level
from engine.hosting.version import installed_distributions
from engine.limits.memory import available_memory, total_memory
from engine.startup import dataclass

_NEEDED: Final = {"engine-sdk": ("numpy", "onnx", "ml_dtypes"), "engine-runtime": ("numpy",)}
"""The distributions that each distribution of the engine needs."""
_LITTLE_MEMORY: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that the engine runs on.

    Attributes:
        python, system: such as "3.11.7" and "Linux-6.1-x86_64".
        versions: of the engine and of what it needs, by distribution; "" for one that is not installed.
        cpu: the processor's name; "" if the native core cannot be loaded.
        isa: the instruction set that kernels use; "" in the same case.
        isas: the instruction sets that this build has the kernels for.
        highest_isa: the highest instruction set of the processor, for which this build may lack kernels.
        cores: how many cores the process may use; machine_cores: how many there are.
        memory, available_memory: in bytes: what the process could ever have, and what it can have now.
    """

    python: str
    system: str
    versions: dict[str, str]
    cpu: str
    isa: str
    isas: tuple[str, ...]
    highest_isa: str
    cores: int
    machine_cores: int
    memory: int
    available_memory: int


def examine_machine() -> tuple[Machine, list[Finding]]:
    """Describe the machine and the native core; a core that cannot be loaded is a finding, not an error."""
    findings: list[Finding] = []
    cpu = isa = best = highest = ""
    isas: tuple[str, ...] = ()
    try:
        from engine.native import built_isas, cpu_features, default_isa

        features = cpu_features()
        cpu, best, highest = features.model, features.isa, features.highest_isa
        isa, isas = default_isa(), built_isas()
    except Exception as e:  # a wrong build may fail in any way
        findings.append(Finding(
            Level.PROBLEM, "native core", f"it cannot be used: {type(e).__name__}: {e}",
            f"reinstall the engine for Python {platform.python_version()} on this machine, and check ENGINE_MAX_ISA",
        ))  # fmt: skip
    engines = tuple(installed_distributions()) or ("engine-sdk",)
    if len(engines) > 1:
        findings.append(Finding(
            Level.PROBLEM, "engine", f"{' and '.join(engines)} are both installed, and have the same files",
            f"{sys.executable} -m pip uninstall {' '.join(engines)}, then install one of them again",
        ))  # fmt: skip
    machine = Machine(
        python=platform.python_version(),
        system=platform.platform(terse=False),
        versions={name: _version(name) for name in (*engines, *_NEEDED[engines[0]])},
        cpu=cpu,
        isa=isa,
        isas=tuple(isas),
        highest_isa=highest,
        cores=_usable_cores(),
        machine_cores=os.cpu_count() or 1,
        memory=total_memory(),
        available_memory=available_memory(),
    )
    if best != highest:
        findings.append(Finding(
            Level.NOTE, "native core", f"it was built without kernels for {highest}, and uses the ones for {best}",
            "reinstall the engine from source on this machine, or with ENGINE_ISAS=all",
        ))  # fmt: skip
    return machine, [*findings, *_of_machine(machine)]


def _of_machine(machine: Machine) -> Iterator[Finding]:
    for name, version in machine.versions.items():
        if not version:
            yield Finding(
                Level.PROBLEM, name, "it is not installed as a distribution", f"{sys.executable} -m pip install {name}"
            )
    if machine.cores < machine.machine_cores:
        yield Finding(
            Level.NOTE, "cores", f"this process may use {machine.cores} of {machine.machine_cores} cores",
            "change the affinity of the process (taskset), or the limit of its container, if that is not intended",
        )  # fmt: skip
    if machine.available_memory < _LITTLE_MEMORY:
        yield Finding(
            Level.PROBLEM, "memory", f"{machine.available_memory >> 20} MiB are available",
            "end other processes, or raise the limit of the container",
        )  # fmt: skip


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1
