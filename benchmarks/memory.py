"""Compares the forecast of a network's memory with what a process takes.

    python benchmarks/memory.py                    # 26 networks on CPU: 5 minutes
    python benchmarks/memory.py --only mlp,resnet50 --streams 2
    python benchmarks/memory.py --device TEMPLATE --only squeezenet

Each network is compiled in a process of its own, which has compiled and run a small model before, so that its modules
are loaded. The private memory of this process after inferences (without pages of files), less what it had before, is
compared with the forecast's peak; the inputs and results are still there. The exit code is 1 if a difference is above
10 % and above 16 MB. The last column has the most memory while the model was compiled, which no forecast includes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from comparison.report import markdown
from onnx import helper

from engine import Core
from engine.testing.models import LIGHT_MODELS, light_model
from engine.testing.networks import NETWORKS, seeded_network, with_any_batch

SHARE, LEAST = 0.10, 16_000_000
"""The difference that is allowed: the larger one of a share of the forecast, and bytes."""
_BATCH = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--device", default="CPU", help="default: CPU")
    parser.add_argument("--only", default="", help="networks, separated by commas; default: all")
    parser.add_argument("--streams", type=int, default=1, help="inferences at one time; default: 1")
    parser.add_argument("--worker", nargs=2, metavar=("FILE", "BATCH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        path, batch = options.worker
        print(json.dumps(_measured(Path(path), options.device, options.streams, int(batch))))
        return 0
    models = _models()
    names = options.only.split(",") if options.only else list(models)
    rows, is_close = [], True
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(models[name](), path := Path(folder) / "model.onnx")
            batch = _BATCH if name.endswith(" of any batch") else 0
            found = _in_process(path, options.device, options.streams, batch)
        forecast, taken = found["forecast"], found["taken"]
        allowed = max(SHARE * forecast, LEAST)
        is_close &= abs(taken - forecast) <= allowed
        mark = "" if abs(taken - forecast) <= allowed else "too far"
        sizes = [found["weights"], found["mapped"], found["arena"], forecast, taken, taken - forecast]
        shown = [f"{size / 1e6:.1f}" for size in sizes]
        rows.append([name, *shown, f"{taken / forecast:.2f}", f"{found['compiling'] / 1e6:.0f}", mark])
        print(rows[-1], file=sys.stderr, flush=True)
    head = ["network", "weights", "mapped", "arena", "peak", "measured", "difference", "ratio", "compiling", ""]
    print(markdown(head, rows))
    return 0 if is_close else 1


def _models() -> dict[str, Callable[[], onnx.ModelProto]]:
    """The networks, by name."""
    made: dict[str, Callable[[], onnx.ModelProto]] = {}
    for name in NETWORKS:
        made[name] = lambda name=name: seeded_network(name).model  # type: ignore[misc]
    for name in LIGHT_MODELS:
        made.setdefault(f"light {name}", lambda name=name: light_model(name))  # type: ignore[misc]
    for name in ("resnet50", "mobilenet_v2", "vit_b16"):
        made[f"{name} of any batch"] = lambda name=name: with_any_batch(seeded_network(name).model)  # type: ignore[misc]
    return made


def _in_process(path: Path, device: str, streams: int, batch: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--device", device, "--streams", str(streams)]
    done = subprocess.run([*command, "--worker", str(path), str(batch)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{path}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measured(path: Path, device: str, streams: int, batch: int) -> dict[str, int]:
    core, config = Core(), {"CACHE_DIR": "", "NUM_STREAMS": streams}
    small = core.compile_model(_small(), device, config)
    small({"x": np.ones((8, 16), np.float32)})
    before, resident = _status("RssAnon"), _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    network = core.compile_model(path, device, config)
    compiling = _status("VmHWM") - resident
    shapes = {port.name: [dim.min if dim.is_static else batch for dim in port.type.shape] for port in network.inputs}
    forecast = network.memory_forecast(shapes)
    given = [
        {port.name: np.ones(shapes[port.name], port.type.element_type.numpy) for port in network.inputs}
        for _ in range(streams)
    ]
    requests = [network.create_infer_request() for _ in range(streams)]
    kept: list[Any] = [None] * streams
    barrier = threading.Barrier(streams)

    def infer(number: int) -> None:
        for _ in range(3):
            barrier.wait()
            kept[number] = requests[number].infer(given[number])

    threads = [threading.Thread(target=infer, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = _status("RssAnon") - before
    return {
        "weights": forecast.weights,
        "mapped": forecast.mapped,
        "arena": forecast.arena,
        "forecast": forecast.peak,
        "taken": taken,
        "compiling": compiling,
    }


def _small() -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(name, 1, [8, 16]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "small", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _status(key: str) -> int:
    """A size of this process in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) << 10


if __name__ == "__main__":
    sys.exit(main())
