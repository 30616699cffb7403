"""Several processes that import one blob have its weights in memory once.

If these fail, a server with a process for each core needs the memory of the model that many times.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, PartialShape, f32

WIDTH, LAYERS = 1024, 4
WEIGHT_BYTES = 4 * WIDTH * WIDTH * LAYERS

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="needs /proc/self/smaps, which tells what memory is shared"
)

WORKER = """
import json, re, sys
import engine_cpu.network  # an import of open lengths and a compilation load the compiler: no code is counted below
import numpy as np
from engine import Core

def kilobytes(text, key):
    return sum(int(found) for found in re.findall(rf"^{key}:\\s+(\\d+) kB", text, re.MULTILINE))

def memory():
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read(), flags=re.MULTILINE)
    of_blob = "".join(part for part in parts if part.partition("\\n")[0].endswith(file))
    anonymous = kilobytes(open("/proc/self/smaps_rollup").read(), "Anonymous")
    keys = ("Rss", "Pss", "Private_Dirty", "Anonymous")
    return {"anonymous": anonymous, **{key: kilobytes(of_blob, key) for key in keys}}

load, file, width = sys.argv[1], sys.argv[2], int(sys.argv[3])
core = Core()
core.get_property("CPU", "FULL_DEVICE_NAME")
before = memory()["anonymous"]
if load == "import":
    network = core.import_model(file, config={"ENABLE_MMAP": True})
else:
    network = core.compile_model(load, "CPU", {"CACHE_DIR": file.rpartition("/")[0]})
    assert network.loaded_from_cache
for rows in (3, 5, 6):
    network([np.ones((rows if len(sys.argv) > 4 else 3, width), np.float32)])
print("ready", flush=True)
for line in sys.stdin:
    found = memory()
    print(json.dumps({**found, "growth": found["anonymous"] - before}), flush=True)
"""


def model(rows: int | None) -> Model:
    """Products with 16 MB of weights."""
    x = Parameter(f32, PartialShape([rows, WIDTH]), "x")
    value = x.output(0)
    for seed in range(LAYERS):
        weights = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH), np.float32) / 32
        value = ops.Relu(ops.MatMul(value, Constant(weights))).output(0)
    return Model([value], [x])


@contextmanager
def worker(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has imported the blob and run it; for each line that it reads, it prints its memory in bytes."""
    command = [sys.executable, "-c", WORKER, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def memory_of(process: subprocess.Popen[str]) -> Mapping[str, int]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return {key: 1024 * value for key, value in found.items()}


def check_shared(*arguments: str) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(worker(*arguments)) for _ in range(3)]
        for process in processes:
            memory = memory_of(process)
            assert memory["Rss"] >= WEIGHT_BYTES  # the weights are read from the mapped file
            assert memory["Private_Dirty"] == memory["Anonymous"] == 0  # which nobody has copied
            assert memory["Pss"] < 0.4 * memory["Rss"]  # and whose pages the three processes share
            assert memory["growth"] < 0.4 * WEIGHT_BYTES  # no copy of the weights is elsewhere


@pytest.mark.parametrize("rows", [3, None])
def test_processes_share_a_mapped_blob(rows: int | None, tmp_path: Path) -> None:
    blob = str(tmp_path / "network.blob")
    Core().compile_model(model(rows), "CPU").export_model(blob)
    check_shared("import", blob, str(WIDTH), *(["dynamic"] if rows is None else []))


def test_processes_share_an_entry_of_the_cache(tmp_path: Path) -> None:
    from engine.onnx import write_model

    path, cache = str(tmp_path / "model.onnx"), tmp_path / "cache"
    write_model(model(3), path)
    Core().compile_model(path, "CPU", {"CACHE_DIR": str(cache)})
    (entry,) = cache.glob("*.blob")
    check_shared(path, str(entry), str(WIDTH))


IMPORTS = """
import sys
import numpy as np
from engine import Core

network = Core().import_model(sys.argv[1], config={"ENABLE_MMAP": True})
network([np.ones((3, int(sys.argv[2])), np.float32)])
print(*sorted({"html.entities", "numpy.ma"} & set(sys.modules)))
"""


def test_a_worker_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Each process has modules in memory of its own; these take more than a megabyte."""
    Core().compile_model(model(3), "CPU").export_model(tmp_path / "network.blob")
    command = [sys.executable, "-c", IMPORTS, str(tmp_path / "network.blob"), str(WIDTH)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "\n"
