"""The job of every worker of a predictor, and how the worker gets its network."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.blob import BlobInput
from engine.core import Core
from engine.core.device_name import parse_device
from engine.errors import BlobIncompatibleError, DeviceNotFoundError, EngineError
from engine.files import CacheFolder
from engine.plugin_api import ExecutableNetwork
from engine.properties import (
    ALLOW_SHARED_CACHE,
    AVAILABLE_DEVICES,
    CACHE_DIR,
    DEVICE_PRIORITIES,
    ENABLE_MMAP,
    FULL_DEVICE_NAME,
    SUPPORTED_CONFIG_KEYS,
)
from engine_ray.required import ray_package

_LOCK: Final = ".engine.ray.lock"
_REUSE_CHOICE: Final = "REUSE_CHOICE"


@dataclass(frozen=True, slots=True)
class Job:
    """The data that a worker needs; it travels to each worker, so large data is referred to.

    Attributes:
        name: of the network, for messages.
        device: the device string.
        config: of the import, or of a compilation on the node.
        blob: refers to the blob's bytes in the object store; None if it is the file `path`.
        path: of the blob, on every node.
        model: refers to the model, for nodes that the blob does not fit; None if there is none.
        keep: the columns that results have beside the network's outputs.
        slot: what a worker takes of Ray's resources, as arguments of `map_batches`.
        journal: the actor that collects progress and notes.
        error_column: the column of the reasons of failed rows; empty if a failed row ends the job.
    """

    name: str
    device: str
    config: Mapping[str, Any]
    blob: Any
    path: str | None
    model: Any
    keep: Sequence[str]
    slot: Mapping[str, float]
    journal: Any
    error_column: str = ""

    def open_network(self) -> tuple[ExecutableNetwork, str]:
        """The network in this process, and why it was compiled here from the model; empty if the blob was imported.

        Raises the errors of `Core.import_model` and `Core.compile_model`.
        """
        core = Core()
        try:
            config = {**self.config, ENABLE_MMAP.name: True} if self.path is not None else self.config
            return core.import_model(self._blob(), self.device, config), ""
        except BlobIncompatibleError as e:
            if self.model is None:
                raise BlobIncompatibleError(self._without_model(str(e))) from e
            with _turn(self.config):
                return core.compile_model(ray_package().get(self.model), self.device, self.config), str(e)

    def check(self) -> tuple[EngineError | None, str]:
        """Why a worker on this node would have no network, or why it would compile it here; each empty if it is not so.

        Reads no more than the manifests of the blob and of the blobs in it, which are the parts of a device that runs
        on others.
        """
        try:
            core, blob = Core(), self._blob()
            found = core.check_blob(blob, self.device)
            targets = self._targets({} if found.manifest is None else found.manifest.config)
            self._require_devices(core, targets)
            reasons = "; ".join(found.reasons)
        except EngineError as e:
            return e, ""
        if reasons and self.model is None:
            return BlobIncompatibleError(self._without_model(reasons)), ""
        return None, reasons

    def _targets(self, exported: Mapping[str, Any]) -> Sequence[str]:
        """The devices that the device runs on, if it runs on others; `exported` is the configuration in the blob."""
        key = DEVICE_PRIORITIES.name
        listed = parse_device(self.device).priorities or self.config.get(key) or exported.get(key)
        return str(listed).split(",") if listed else ()

    def _require_devices(self, core: Core, targets: Sequence[str]) -> None:
        """Raise an error if a device that is needed finds nothing on this node, or cannot be used."""
        name = self.device.partition(":")[0]
        _require_device(core, name, self.device)
        errors = []
        for target in targets:
            try:
                _require_device(core, target.partition("(")[0], self.device)
            except EngineError as e:
                errors.append(e)
        # AUTO, and plugins that choose like it, go on with the devices that are there.
        is_choosing = _REUSE_CHOICE in core.get_property(name, SUPPORTED_CONFIG_KEYS.name)
        if errors and (len(errors) == len(targets) or not is_choosing):
            raise errors[0]

    def _blob(self) -> BlobInput:
        """The file, or the bytes in the object store's memory, which all workers of a node share."""
        if self.path is not None:
            return self.path
        blob: BlobInput = memoryview(ray_package().get(self.blob))
        return blob

    def _without_model(self, reasons: str) -> str:
        return f"{self.name}: {reasons}; or pass the model to predictor, which compiles it where the blob does not fit"


def _require_device(core: Core, name: str, device: str) -> None:
    if not core.get_property(name, AVAILABLE_DEVICES.name):
        where = "" if name == device else f"{device}: "
        raise DeviceNotFoundError(f"{where}{name} finds no device on this node")
    core.get_property(name, FULL_DEVICE_NAME.name)  # raises if it cannot be used


def _turn(config: Mapping[str, Any]) -> ExitStack:
    """Processes with one CACHE_DIR compile after each other, so all but the first load the first one's network."""
    stack, folder = ExitStack(), config.get(CACHE_DIR.name)
    if folder:
        try:
            import fcntl  # not on Windows

            CacheFolder(Path(folder), bool(config.get(ALLOW_SHARED_CACHE.name))).make()
            file = stack.enter_context(open(Path(folder, _LOCK), "ab"))  # noqa: SIM115 - it is in the stack
            fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError, ValueError):
            pass  # no worker waits; the compilation reports what is wrong with the folder
    return stack


def this_worker() -> tuple[str, int]:
    """The host's name and the process id."""
    return socket.gethostname(), os.getpid()
