"""The trial of one plugin: the program that `engine.cli.health.devices` runs in a process of its own.

`python -m engine.cli.health.trial FILE NAME [TARGETS]` writes what it finds to FILE as JSON: of the plugin NAME, or of
its devices that run on TARGETS, such as "CPU,TEMPLATE".
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from engine.core import Core
from engine.errors import EngineError, MissingPartError
from engine.ir import Constant, Model, Parameter, f32
from engine.properties import AVAILABLE_DEVICES, DEVICE_PRIORITIES, FULL_DEVICE_NAME

_LENGTH = 4


def main() -> None:
    """Try the plugin of the command line."""
    file, name, *targets = sys.argv[1:]
    said = _Warnings()
    logging.getLogger("engine").addHandler(said)
    found = _tried(name, *targets)
    outdated = found.get("outdated")
    warnings = [message for message in said.messages if not (outdated and outdated in message)]
    Path(file).write_text(json.dumps({**found, "warnings": warnings}), encoding="utf-8")


class _Warnings(logging.Handler):
    """Keeps each warning of the engine and the plugin once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.messages[record.getMessage()] = None


def _tried(name: str, targets: str = "") -> dict[str, Any]:
    core = Core()
    try:
        ids = core.get_property(name, AVAILABLE_DEVICES.name)
        declared = core.supported_properties(name)
    except EngineError as e:
        return {"error": str(e), "has_targets": False, "devices": []}
    devices = [f"{name}.{each}" for each in ids] if len(ids) > 1 else [name]
    has_targets = any(each.name == DEVICE_PRIORITIES.name for each in declared)
    if targets:
        devices = [f"{device}:{targets}" for device in devices]
    return {
        "error": "" if ids else "it finds no device on this machine",
        "outdated": core.get_versions(name)[name].outdated,
        "has_targets": has_targets,
        "devices": [] if not ids or (has_targets and not targets) else [_device(core, device) for device in devices],
    }


def _device(core: Core, device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"device": device, "error": ""}
    start = time.perf_counter()
    try:
        found["name"] = core.get_property(device.partition(":")[0], FULL_DEVICE_NAME.name)
        found["error"] = _run(core, device)
    except EngineError as e:
        found["error"] = str(e)
    found["seconds"] = time.perf_counter() - start
    return found


def _run(core: Core, device: str) -> str:
    """The fault in the result of a small model, which fills rows with sums; "" if it is right."""
    import numpy as np

    try:
        from engine import ops
    except MissingPartError:  # the runtime compiles no model
        return _run_kernel()
    x = Parameter(f32, [2, _LENGTH], "x")
    weights = Constant(np.arange(_LENGTH * _LENGTH, dtype=np.float32).reshape(_LENGTH, _LENGTH))
    model = Model([ops.Relu(ops.Add(ops.MatMul(x, weights), Constant(np.float32(-50.0))), friendly_name="y")], [x])
    value = np.arange(2 * _LENGTH, dtype=np.float32).reshape(2, _LENGTH)
    expected = np.maximum(value @ weights.data - 50, 0)  # small integers, exact in every precision of 11 bits
    (result,) = core.compile_model(model, device)({"x": value}).values()
    if not isinstance(result, np.ndarray) or result.shape != expected.shape or (result != expected).any():
        return f"it computes a wrong result: {np.asarray(result).tolist()}, expected {expected.tolist()}"
    return ""


def _run_kernel() -> str:
    """The fault of a kernel of the native core; "" if its result is right."""
    import numpy as np

    from engine.native import run_kernel

    value = np.arange(_LENGTH, dtype=np.float32)
    result = np.zeros_like(value)
    run_kernel("copy", [value], [result])
    return "" if (result == value).all() else f"it computes a wrong result: {result.tolist()}"


if __name__ == "__main__":
    main()
