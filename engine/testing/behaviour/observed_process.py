"""The program of a process that uses a device and reports what it changed. Run by `isolation.py`, never imported."""

from __future__ import annotations

import decimal
import gc
import json
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from engine.core import Core
from engine.ir import Model


def main() -> None:
    """Arguments: the report's path, the model, the device string, its configuration, the inputs' shape, the limit."""
    report, path, device, config, shape, limit = sys.argv[1:]
    arrays = [np.full(json.loads(shape), value, np.float32) for value in (0.25, 0.5)]
    core = Core()
    model = core.read_model(path)  # imports what reading models needs
    before = state()
    for _ in range(2):
        use(core, model, device, json.loads(config), arrays)
    threads = settled(threading.enumerate(), 0.05)
    for _ in range(3):
        use(core, model, device, json.loads(config), arrays)
    remaining = settled(threads, float(limit))
    del core
    gc.collect()
    after = state()
    changes = {name: [before[name], after[name]] for name in before if before[name] != after[name]}
    left = [each.name for each in remaining if each not in threads] if len(remaining) > len(threads) else []
    Path(report).write_text(json.dumps({"changes": changes, "threads": left}), encoding="utf-8")


def use(core: Core, model: Model, device: str, config: dict[str, Any], arrays: list[Any]) -> None:
    """Query, compile, infer in several ways, cancel, and drop everything."""
    core.query_model(model, device, config)
    network = core.compile_model(model, device, {**config, "PERF_COUNT": True})
    network(arrays)
    request = network.create_infer_request()
    request.set_callback(lambda done, error: None)
    for _ in range(2):
        request.start_async(arrays)
        request.wait()
    request.start_async(arrays)
    request.cancel()
    while request.state.name != "IDLE":
        time.sleep(0.001)


def settled(expected: list[threading.Thread], limit: float) -> list[threading.Thread]:
    """The threads that are alive when there are no more than expected, or the limit (s) has passed."""
    end = time.monotonic() + limit
    while True:
        gc.collect()
        alive = threading.enumerate()
        if len(alive) < len(expected) or (len(alive) == len(expected) and limit > 1) or time.monotonic() > end:
            return alive
        time.sleep(0.002)


def state() -> dict[str, str]:
    """The state that a library must leave as it finds it, by a readable name."""
    smallest = np.full(1, 1e-40, np.float32)
    mask = os.umask(0)
    os.umask(mask)
    return {
        "the working directory": os.getcwd(),
        "the environment": repr(sorted(os.environ.items())),
        "the file creation mask": oct(mask),
        "the signal handlers": repr({number: signal.getsignal(number) for number in sorted(signal.valid_signals())}),
        "the locale": repr(locale.setlocale(locale.LC_ALL)),
        "the filters of warnings": repr(warnings.filters),
        "numpy's error handling": repr(np.geterr()),
        "numpy's print options": repr(np.get_printoptions()),
        "numpy's random state": repr(np.random.get_state(legacy=True)),
        "subnormal numbers": repr(float((smallest * np.float32(1))[0])),
        "the random state": str(hash(random.getstate())),
        "the decimal context": repr(decimal.getcontext()),
        "the default socket timeout": repr(socket.getdefaulttimeout()),
        "the root logger": repr((logging.root.level, logging.root.handlers, logging.root.disabled)),
        "garbage collection": repr((gc.isenabled(), gc.get_threshold())),
        "the recursion limit": repr(sys.getrecursionlimit()),
        "the switch interval": repr(sys.getswitchinterval()),
        "the hooks for exceptions": repr((sys.excepthook, threading.excepthook, sys.unraisablehook)),
        "sys.stdout and sys.stderr": repr((sys.stdout, sys.stderr)),
        "sys.argv": repr(sys.argv),
    }


if __name__ == "__main__":
    main()
