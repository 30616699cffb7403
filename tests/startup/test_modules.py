"""What a process imports on each way to its first result: modules that it does not run cost it time and memory.

The numbers are those beyond `import numpy`, or beyond the interpreter for a command that does without numpy. They have
room for the modules of other Python versions. A test that fails names what was imported in addition, and by what.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine import Core
from engine.testing.networks import seeded_network

COMPILER = {
    "engine.editing", "engine.lowering", "engine.onnx", "engine.ops", "engine.passes", "engine.preprocessing",
    "engine_cpu.lowering", "engine_cpu.network", "engine_cpu.passes", "google", "ml_dtypes", "onnx",
}  # fmt: skip
REPORTS = {
    "engine.drawing.graph", "engine.drawing.page", "engine.drawing.table", "engine.drawing.timeline",
    "engine.placement.consistency", "engine.runtime.comparison", "engine.runtime.profile_table",
    "engine.runtime.random_inputs", "engine.runtime.shadow", "engine.runtime.trace", "engine.visualize",
}  # fmt: skip
"""Pictures, tables, traces and comparisons."""
GRAPHS = {"engine.ir.model", "engine.ir.node", "engine.placement"}
"""Models, and what devices say of their nodes."""
SLOW = {"asyncio", "concurrent", "difflib", "email", "importlib.metadata", "random", "tempfile", "uuid", "zipfile"}
"""Modules of the standard library that load many others, and that the engine needs for few purposes."""
REST = {"engine.cli", "engine.generation", "engine.session", "engine.testing", "engine.values"}

PRELUDE = """
import builtins, json, sys
{first}
before, importers, original = set(sys.modules), {{}}, builtins.__import__
def traced(name, globals=None, *rest):
    known = set(sys.modules)
    try:
        return original(name, globals, *rest)
    finally:
        for each in set(sys.modules) - known:
            importers.setdefault(each, (globals or {{}}).get("__name__", ""))
builtins.__import__ = traced
try:
    {job}
finally:
    found = {{each: importers.get(each, "") for each in sys.modules if each not in before}}
    open(sys.argv[1], "w").write(json.dumps(found))
"""


def imported(folder: Path, job: str, first: str = "import numpy") -> dict[str, str]:
    """The modules that a job imports in a process of its own, each with the module that imports it first."""
    result = folder / "modules.json"
    script = PRELUDE.format(first=first, job=job.strip().replace("\n", "\n    "))
    done = subprocess.run(
        [sys.executable, "-c", script, str(result)], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(result.read_text())
    return found


def check(found: dict[str, str], most: int, *forbidden: set[str]) -> None:
    """Fail if there are more than `most` modules, or any of the forbidden ones, or below one."""
    wrong = {
        name: importer
        for name, importer in found.items()
        if any(name == each or name.startswith(f"{each}.") for each in set().union(*forbidden))
    }
    assert wrong == {}, "imported for nothing, and by what"
    assert len(found) <= most, sorted(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network as a model, as a blob, and in a cache."""
    path = tmp_path_factory.mktemp("modules")
    (path / "mlp.onnx").write_bytes(seeded_network("mlp").model.SerializeToString())
    network = Core().compile_model(path / "mlp.onnx", "CPU", {"CACHE_DIR": str(path / "cache")})
    network.export_model(path / "mlp.blob")
    return path


def job(network: str) -> str:
    """Make a network, and infer once."""
    inference = 'assert numpy.isfinite(network({"x": numpy.ones((1, 128), numpy.float32)})[0]).all()'
    return f"from engine import Core\nnetwork = Core().{network}\n{inference}"


def test_the_core(folder: Path) -> None:
    check(imported(folder, "from engine import Core"), 105, COMPILER, REPORTS, SLOW, REST, GRAPHS, {"engine.native"})


def test_a_blob(folder: Path) -> None:
    """The native core, the reader of blobs, the request, and what they need."""
    found = imported(folder, job('import_model("mlp.blob")'))
    check(found, 140, COMPILER, REPORTS, SLOW, REST, GRAPHS, {"engine.core.cache", "engine.hosting.overrides"})


def test_a_model_in_the_cache(folder: Path) -> None:
    """Nothing that transforms or lowers: the entry has the program."""
    found = imported(folder, job('compile_model("mlp.onnx", "CPU", {"CACHE_DIR": "cache"})'))
    check(found, 165, COMPILER, REPORTS, SLOW - {"zipfile"}, REST)


def test_a_model(folder: Path) -> None:
    """The native module of onnx, its messages, and what protobuf needs for them; not the package."""
    found = imported(folder, job('compile_model("mlp.onnx", "CPU")'))
    check(
        {name: importer for name, importer in found.items() if not name.startswith(("onnx.onnx_", "google."))},
        560,
        REPORTS,
        REST,
        SLOW,
        {"asyncio", "concurrent", "ml_dtypes", "onnx", "sqlite3"},
    )


def run_of(*arguments: str) -> str:
    """Run a command."""
    run = f"try:\n    main({list(arguments)})\nexcept SystemExit as e:\n    assert not e.code"
    return f"from engine.cli.main import main\n{run}"


def test_help(folder: Path) -> None:
    found = imported(folder, run_of("--help"), first="")
    check(found, 100, COMPILER, REPORTS - {"engine.drawing.table"}, SLOW, {"engine.core", "engine.ir", "numpy"})


def test_the_list_of_devices(folder: Path) -> None:
    """Each plugin is imported, and nothing that compiles for it; OpenCL's needs what its drivers need.

    Runtimes that are installed say what devices they have: their own modules do not count.
    """
    found = imported(folder, run_of("devices"))
    runtimes = ("openvino", "onnxruntime")
    check({name: by for name, by in found.items() if not name.startswith(runtimes)}, 340, COMPILER)


def test_a_run_of_a_blob(folder: Path) -> None:
    found = imported(folder, run_of("run", "mlp.blob"))
    check(found, 200, COMPILER, {"engine.drawing.timeline", "engine.runtime.trace", "engine.visualize"})


def test_a_model_of_few_operators(folder: Path) -> None:
    """Of the operators, passes and lowerings, those that an MLP needs: the count is without other packages."""
    found = imported(folder, job('compile_model("mlp.onnx", "CPU")'))
    others = {
        "engine.onnx.contrib", "engine.ops.attention", "engine.ops.classical", "engine.ops.control_flow",
        "engine.ops.extension", "engine.ops.normalization", "engine.ops.pool", "engine.ops.recurrent",
        "engine.passes.common.attention_fusion", "engine.passes.common.conv_bias_fusion",
        "engine.passes.common.quantized_fusion", "engine_cpu.lowering.conv", "engine_cpu.lowering.recurrent",
        "engine_cpu.passes.scale_shift_fusion", "engine_cpu.segments.repetition",
    }  # fmt: skip
    check({name: importer for name, importer in found.items() if name.startswith("engine")}, 350, others)
