"""Run a real network on devices and compare its logits with saved results of another runtime.

usage: python examples/main_job.py [MODEL] [DEVICE ...]     (default: resnet50 CPU TEMPLATE)

The network is compiled and run, then exported to a blob, imported and run again. The error is the largest difference
relative to the largest logit; the exit code is 1 if it exceeds the rounding tolerance.
"""

from __future__ import annotations

import io
import sys
import time

import engine
from engine import Core
from engine.testing.models import light_answer, light_input, light_model, light_tolerance, relative_error


def main(name: str = "resnet50", *devices: str) -> int:
    """Run the network `name` on each device; return the exit code."""
    print(f"engine from {engine.__path__[0]}, devices: {', '.join(Core().available_devices)}")
    return max([check(name, device) for device in devices or ("CPU", "TEMPLATE")])


def check(name: str, device: str) -> int:
    """Compile, run, export, import and run again; return 1 if a result is wrong."""
    inputs, answer, tolerance = light_input(name), light_answer(name), light_tolerance(name)

    network = Core().compile_model(light_model(name), device)
    blob = io.BytesIO()
    network.export_model(blob)
    imported = Core().import_model(blob.getvalue(), device)

    failed = False
    for how, candidate in (("compiled", network), ("exported and imported", imported)):
        start = time.perf_counter()
        result = candidate(inputs)[0]
        seconds = time.perf_counter() - start
        error = relative_error(result, answer)
        verdict = "ok" if error <= tolerance else "WRONG"
        failed |= verdict != "ok"
        print(f"{verdict}: {name} on {device}, {how}, {seconds:.3f} s: error {error:.1e}, limit {tolerance:.1e}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
