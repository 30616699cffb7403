"""Tests whether and how a device can be used, once per device and driver, in a child process."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any, Final

from engine.errors import DeviceError
from engine.startup import dataclass
from engine_opencl.binaries import binary_cache, default_folder
from engine_opencl.children import check_worker
from engine_opencl.children.child import Child, has_interpreter
from engine_opencl.execution.kernels import new_kernel

_log = logging.getLogger("engine.opencl")
_WORKER: Final = Path(check_worker.__file__)
_COMMAND: Final = (sys.executable, "-P", str(_WORKER))
_SECONDS: Final = 60.0
_REFUSAL_SECONDS: Final = 24 * 3600.0
"""Seconds after which an unusable device is tested again, since the cause may have been fixed."""
MEMORY_KINDS: Final = ("shared", "mapped", "staged")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result: why the device is unusable, or how its memory is used (`OpenclDevice.memory_kind`)."""

    failed: str = ""
    memory_kind: str = "staged"


def verdict(handle: Any, position: tuple[int, int]) -> Verdict:
    """The verdict on a device, from the user's cache folder if known."""
    cache, key = binary_cache(default_folder()), _key(handle)
    known = _read(cache.get(key))
    if known is not None:
        return known
    found = _run_check(handle, position)
    content = {"failed": found.failed, "memory": found.memory_kind, "at": time.time()}
    cache.put(key, json.dumps(content).encode())
    return found


def _key(handle: Any) -> str:
    import pyopencl as cl

    platform = handle.platform
    parts = [handle.name, handle.version, handle.driver_version, platform.name, platform.version, cl.VERSION_TEXT]
    parts.append(_WORKER.read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _read(content: bytes | None) -> Verdict | None:
    if content is None:
        return None
    try:
        values = json.loads(content)
        failed, kind, age = str(values["failed"]), values["memory"], time.time() - float(values["at"])
    except (ValueError, KeyError, TypeError):
        return None
    if kind not in MEMORY_KINDS or (failed and not 0 <= age < _REFUSAL_SECONDS):
        return None
    return Verdict(failed, kind)


def _run_check(handle: Any, position: tuple[int, int]) -> Verdict:
    try:
        answer = _check_in_child(position) if has_interpreter() else check_worker.checked(handle, new_kernel)
    except DeviceError as e:
        _log.info("OPENCL: %s is tested in this process, because no child process can be started: %s", handle.name, e)
        answer = check_worker.checked(handle, new_kernel)
    return Verdict(answer.get("failed", ""), answer.get("memory", "staged"))


def _check_in_child(position: tuple[int, int]) -> dict[str, str]:
    """The answer of a child. Raises `DeviceError` if it cannot be started."""
    child = Child(_COMMAND)
    try:
        child.send({"paths": sys.path, "platform": position[0], "device": position[1]})
        answer = child.receive(_SECONDS)
        if answer is None:
            return {"failed": f"the process that ran a minimal test kernel {child.how_it_ended(_SECONDS)}"}
        return answer
    finally:
        child.stop()
