"""A process that runs cases: seeds arrive on stdin, a line of JSON for each leaves on the descriptor given."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import json
import os
import resource
import sys
import time
import traceback
from types import ModuleType
from typing import Any

from .finding import Finding, note, note_into

DEVICES = "TEMPLATE,CPU,HETERO"


def main() -> None:
    """Serve seeds until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("generator")
    parser.add_argument("--answers", type=int, required=True)
    parser.add_argument("--notes", type=int, required=True)
    parser.add_argument("--devices", default=DEVICES)
    options = parser.parse_args()
    faulthandler.enable()
    os.dup2(2, 1)  # whatever prints must not disturb the answers
    note_into(options.notes)
    note("importing")
    module = importlib.import_module(f".{options.generator}", __package__)
    module.prepare(tuple(options.devices.split(",")))
    if module.MEMORY:
        limit = _address_space() + module.MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    gc.freeze()
    with os.fdopen(options.answers, "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            answers.write(json.dumps(answer(module, int(line))) + "\n")
            answers.flush()


def answer(module: ModuleType, seed: int) -> dict[str, Any]:
    """Run one case; what its end was, its seconds, and the memory of the process in MiB."""
    start = time.monotonic()
    outcome, detail, is_finding = "", "", True
    try:
        outcome, is_finding = module.run(seed), False
    except Finding as e:
        outcome, detail = e.kind, e.detail
    except KeyboardInterrupt:
        if not module.INTERRUPTS:
            raise
        outcome, detail = "KeyboardInterrupt escaped", traceback.format_exc()
    except BaseException as e:
        outcome, detail = f"{type(e).__name__} escaped", traceback.format_exc()
    seconds = round(time.monotonic() - start, 3)
    return {
        "seed": seed, "outcome": outcome, "detail": detail[-6000:], "is_finding": is_finding, "seconds": seconds,
        "mebibytes": _resident() >> 20,
    }  # fmt: skip


def _address_space() -> int:
    return _statm(0)


def _resident() -> int:
    return _statm(1)


def _statm(column: int) -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[column]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
