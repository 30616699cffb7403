"""Each plugin and each of its devices, tried in a process of its own on a small model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from engine.cli.health.findings import Finding, Level
from engine.registry.installed import InstalledEntryPoints
from engine.startup import dataclass

GROUP: Final = "engine.plugins"
LIMIT: Final = 120.0
"""How long the trial of a plugin may take, in seconds. The first use of a GPU's compiler takes tens of seconds."""
_SHOWN: Final = 500


@dataclass(frozen=True, slots=True)
class TriedPlugin:
    """A plugin: the device's name, its distribution with version, why it is unusable ("" if it is not), its devices."""

    name: str
    distribution: str
    error: str
    devices: tuple[TriedDevice, ...]


@dataclass(frozen=True, slots=True)
class TriedDevice:
    """A device, and how its trial went.

    Attributes:
        device: the device string, such as "OPENCL.1" or "HETERO:CPU".
        name: its name in full.
        error: what failed; "" if it computed the right result.
        seconds: how long compiling and the first inference took.
    """

    device: str
    name: str
    error: str
    seconds: float


def examine_devices(wanted: Sequence[str] = (), limit: float = LIMIT) -> tuple[tuple[TriedPlugin, ...], list[Finding]]:
    """Try the installed plugins, or only the ones named in `wanted`, with findings.

    Devices that run on others are tried last, on those that work.
    """
    installed = {
        entry.name: distribution for distribution, entries in InstalledEntryPoints().of(GROUP) for entry in entries
    }
    missing = [name for name in wanted if name not in installed]
    findings = [
        Finding(
            Level.PROBLEM, name, f"no installed plugin has this device; installed: {', '.join(sorted(installed))}",
            "install its plugin into this environment",
        )
        for name in missing
    ]  # fmt: skip
    if not installed:
        findings.append(Finding(
            Level.PROBLEM, "plugins", "none is installed", f"{sys.executable} -m pip install engine-plugin-cpu"
        ))  # fmt: skip
    names = sorted(name for name in installed if not wanted or name in wanted)
    answers = {name: _try(name, "", limit) for name in names}
    working = [device["device"] for answer in answers.values() for device in answer["devices"] if not device["error"]]
    if not working:  # other devices', for devices that run on them
        working = [name for name in sorted(installed) if name not in names][:1]
    for name, answer in answers.items():
        if answer["has_targets"] and not answer["error"] and not answer["devices"] and working:
            answers[name] = _try_on(name, working, limit)
    tried = tuple(_plugin(name, installed[name], answers[name]) for name in names)
    warned = [
        Finding(Level.NOTE, name, f"it warns: {message[:_SHOWN]}", "do what the warning says, or ignore it")
        for name, answer in answers.items()
        if not answer["error"]  # otherwise, the error says it
        for message in answer.get("warnings", ())
    ]
    outdated = [
        Finding(
            Level.NOTE, name, f"it works with this engine, but {answer['outdated']}",
            f"install a newer {_owner(installed[name])} before the next engine, or ask its author for one",
        )
        for name, answer in answers.items()
        if answer.get("outdated")
    ]  # fmt: skip
    return tried, [*findings, *(finding for plugin in tried for finding in _findings(plugin)), *warned, *outdated]


def _plugin(name: str, distribution: str, answer: dict[str, Any]) -> TriedPlugin:
    devices = tuple(
        TriedDevice(each["device"], each.get("name", ""), each["error"], each["seconds"]) for each in answer["devices"]
    )
    error = answer["error"]
    if not error and not devices:
        error = "it runs models on other devices, and none works"
    return TriedPlugin(name, distribution, error, devices)


def _findings(plugin: TriedPlugin) -> list[Finding]:
    owner = _owner(plugin.distribution)
    remedy = f"install what the reason names, reinstall {owner}, or uninstall it"
    if plugin.error:
        return [Finding(Level.PROBLEM, plugin.name, f"it cannot be used: {plugin.error}", remedy)]
    return [
        Finding(Level.PROBLEM, each.device, f"a small model fails: {each.error}", remedy)
        for each in plugin.devices
        if each.error
    ]


def _owner(distribution: str) -> str:
    """The name of a distribution, which may have none."""
    return distribution.partition(" ")[0] or "its package"


def _try_on(name: str, devices: Sequence[str], limit: float) -> dict[str, Any]:
    """The trial of a device that runs on others: on all of them, or on one, if it takes only one."""
    answer = _try(name, ",".join(devices), limit)
    if len(devices) > 1 and any(each["error"] for each in answer["devices"]):
        return _try(name, devices[0], limit)
    return answer


def _try(name: str, targets: str, limit: float) -> dict[str, Any]:
    """The answer of the trial, or an error that says how its process failed."""
    # The process finds the same modules, also those that this one was given at run time.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with tempfile.TemporaryDirectory(prefix="engine-doctor-") as folder:
        file = Path(folder) / "answer.json"
        command = [
            sys.executable,
            "-P",
            "-m",
            "engine.cli.health.trial",
            str(file),
            name,
            *([targets] if targets else []),
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _failed(f"its trial took longer than {limit:g} s")
        try:
            answer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return _failed(_how_it_ended(done.returncode, done.stderr.decode(errors="replace")))
    return answer


def _failed(error: str) -> dict[str, Any]:
    return {"error": error, "has_targets": False, "devices": []}


def _how_it_ended(code: int, said: str) -> str:
    last = said.strip().rpartition("\n")[2][-_SHOWN:]
    because = f"; it said: {last}" if last else ""
    if code < 0:
        try:
            return f"the process that tries it was ended by {signal.Signals(-code).name}{because}"
        except ValueError:
            return f"the process that tries it was ended by signal {-code}{because}"
    return f"the process that tries it ended with exit code {code}{because}"
