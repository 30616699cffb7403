"""`TuningCache`: choices measured on a device model, in a file shared by processes."""

from __future__ import annotations

import functools
import hashlib
import logging
from importlib import resources
from pathlib import Path

from engine.files import ChoicesFile
from engine.plugin_api import engine_version
from engine_opencl.devices.device import OpenclDevice

_log = logging.getLogger("engine.opencl")


class TuningCache(ChoicesFile):
    """Choices by site, for one device, driver and kernel version."""

    def __init__(self, folder: Path, device: OpenclDevice, *, is_shared: bool = False) -> None:
        super().__init__(folder, "tuning", tuning_key(device), _log, is_shared=is_shared)


def tuning_key(device: OpenclDevice) -> list[str]:
    """The key of everything that measurements depend on."""
    return [device.identity, str(device.facts.compute_units), engine_version(), _kernel_table()]


@functools.cache
def _kernel_table() -> str:
    """A hash of all kernel sources."""
    digest = hashlib.sha256()
    for file in sorted(resources.files("engine_opencl").joinpath("kernels").iterdir(), key=lambda each: each.name):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
