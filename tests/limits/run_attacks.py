"""Runs attack models on a device, each in a process with limited memory; prints names, then a line of JSON for each.

`run_attacks.py DEVICE MEMORY_BYTES SECONDS [NAME ...]`. OPENCL, whose runtimes cannot be used after a fork, runs all in
one process without limits.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from typing import Any

from attack_models import ATTACKS

from engine import Core
from engine.errors import EngineError


def run(core: Core, device: str, name: str, seconds: float) -> dict[str, Any]:
    start = time.perf_counter()
    outcome, message, compiled = "success", "", False
    try:
        data, inputs = ATTACKS[name]()
        network = core.compile_model(data, device)
        compiled = True
        request = network.create_infer_request()
        request.start_async(inputs, deadline=0.3 if name == "endless_loop" else seconds / 4)
        request.wait()
    except EngineError as e:
        outcome, message = type(e).__name__, str(e)
    return {
        "name": name,
        "outcome": outcome,
        "message": message[:400],
        "compiled": compiled,
        "seconds": round(time.perf_counter() - start, 2),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main(device: str, memory: int, seconds: float, names: list[str]) -> None:
    core = Core()
    core.compile_model(ATTACKS["skips_of_ngrams"]()[0], "TEMPLATE")  # imports
    is_forked = "OPENCL" not in device
    names = names or list(ATTACKS)
    print(json.dumps(names), flush=True)
    for name in names:
        if is_forked and (child := os.fork()):
            _, status = os.waitpid(child, 0)
            if status:
                print(json.dumps({"name": name, "outcome": f"status {status}", "message": "", "seconds": 0, "peak": 0}))
        else:
            if is_forked:
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
                signal.alarm(int(seconds))
            print(json.dumps(run(core, device, name, seconds)), flush=True)
            if is_forked:
                os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
