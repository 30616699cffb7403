"""`engine-runtime`: blobs run where only numpy is installed, and errors name what is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, Result, bf16, f32
from engine.testing.networks import seeded_network

ROOT = Path(__file__).parent.parent
SMALL = ("mlp", "mobilenet_v2", "lstm", "segformer_b0")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


runtime_wheel = load("runtime_wheel")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = runtime_wheel.runtime_files(runtime_wheel.files_of_checkout(ROOT))
    tag = f"{sys.implementation.cache_tag.replace('cpython-', 'cp')}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    folder = tmp_path_factory.mktemp("wheel")
    made: Path = runtime_wheel.write_wheel(folder, files, "0.1.0", f"{tag}-{tag}-{platform}", ">=3.11", b"a licence")
    return made


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    """A folder with what the wheel installs, and numpy."""
    folder = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    installed = Path(np.__file__).parent.parent
    for name in ("numpy", "numpy.libs"):
        if (installed / name).exists():
            (folder / name).symlink_to(installed / name)
    return folder


@pytest.fixture(scope="module")
def blobs(wheel: Path) -> Path:
    """Blobs of networks, each with an input and its output."""
    core, folder = Core(), wheel.parent / "blobs"
    folder.mkdir()
    for name in SMALL:
        network = seeded_network(name, small=True)
        compiled = core.compile_model(network.model.SerializeToString(), "CPU")
        compiled.export_model(folder / f"{name}.blob")
        (x,), (y,) = network.inputs.values(), compiled(network.inputs).values()
        np.savez(folder / f"{name}.npz", x=x, y=y)
    x = Parameter(f32, ["N", 8], "x")
    core.compile_model(Model([ops.Relu(x)], [x]), "CPU").export_model(folder / "open.blob")
    x = Parameter(f32, [4], "x")
    evaluated = Model([Result(ops.Det(ops.Reshape(x, Constant(np.array([2, 2])))), "y")], [x])
    core.compile_model(evaluated, "CPU").export_model(folder / "evaluated.blob")
    x = Parameter(bf16, [4], "x")
    core.compile_model(Model([Result(ops.Identity(x), "y")], [x]), "CPU").export_model(folder / "bf16.blob")
    core.compile_model(Model([ops.Relu(x := Parameter(f32, [4], "x"))], [x]), "AUTO").export_model(folder / "auto.blob")
    return folder


def run(python: Path | str, *arguments: str | Path, cwd: Path, site: Path | None = None) -> tuple[int, str]:
    """Run an interpreter with `site` as its only packages, if it is given; the status, and what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    options = [] if site is None else ["-S"]
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    command = [str(python), *options, "-W", "error", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


JOB = """
import sys
import numpy as np
from engine import Core
core = Core()
for name in sys.argv[1:]:
    data = np.load(f"{name}.npz")
    (y,) = core.import_model(f"{name}.blob")([data["x"]]).values()
    np.testing.assert_array_equal(y, data["y"])
foreign = {module.partition(".")[0] for module in sys.modules} - set(sys.stdlib_module_names)
print(sorted(name for name in foreign if not name.startswith("_")))
"""


def test_blobs_run_with_numpy_alone(site: Path, blobs: Path) -> None:
    status, said = run(sys.executable, "-c", JOB, *SMALL, cwd=blobs, site=site)
    assert status == 0, said
    assert said.splitlines()[-1] == "['engine', 'engine_cpu', 'numpy']"


LEFT_OUT = {
    "core.compile_model('model.onnx', 'CPU')": "compiling models needs the module engine.core.compilation",
    "core.read_model('model.onnx')": "reading models needs the module engine.onnx",
    "core.add_extension('kernels')": "operators of extensions needs",
    "from engine import PrePostProcessor": "adding steps of preprocessing needs the module engine.preprocessing",
    "import engine.ops": "evaluating operators needs the module engine.ops",
    "core.import_model('open.blob')": "has no plans, only the graph: the shapes of inputs are open",
    "core.import_model('evaluated.blob')": "runs on the reference evaluator",
    "core.import_model('auto.blob')": "no plugin provides device 'AUTO'",
}


def test_what_is_left_out_says_what_to_install(site: Path, blobs: Path) -> None:
    program = (
        "import sys\nfrom engine import Core, EngineError\ncore = Core()\nfor code in sys.argv[1:]:\n"
        "    try:\n        exec(code)\n    except EngineError as e:\n        print(e)\n"
    )
    status, said = run(sys.executable, "-c", program, *LEFT_OUT, cwd=blobs, site=site)
    assert status == 0, said
    for line, (code, expected) in zip(said.splitlines(), LEFT_OUT.items(), strict=True):
        assert expected in line
        assert "auto" in code or "pip uninstall engine-runtime, then pip install engine-sdk engine-plugin-cpu" in line


def test_a_type_that_numpy_lacks_names_the_package_that_has_it(site: Path, blobs: Path) -> None:
    program = "from engine import Core\nCore().import_model('bf16.blob')"
    status, said = run(sys.executable, "-c", program, cwd=blobs, site=site)
    assert status == 1
    assert "element type bf16 needs the package ml_dtypes" in said.splitlines()[-1]
    assert said.rstrip().endswith("pip install ml_dtypes")


def test_its_commands_run_and_others_say_where_they_are(site: Path, blobs: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.load(blobs / "mlp.npz")["x"])
    for command in (
        ["devices"], ["inspect", "mlp.blob", "--verify"], ["profile", "mlp.blob"], ["--version"],
        ["run", "mlp.blob", "-i", tmp_path / "x.npy", "-o", tmp_path / "y.npz"],
    ):  # fmt: skip
        status, said = run(sys.executable, "-m", "engine", *command, cwd=blobs, site=site)
        assert status == 0, said
    (y,) = np.load(tmp_path / "y.npz").values()
    np.testing.assert_array_equal(y, np.load(blobs / "mlp.npz")["y"])
    _, listed = run(sys.executable, "-m", "engine", "--help", cwd=blobs, site=site)
    assert " run " in listed
    assert "    compile  " not in listed
    assert "engine compile" not in listed.replace("engine compile --sign", "")
    for command in ["compile", "model.onnx"], ["run", "mlp.npz"]:
        status, said = run(sys.executable, "-m", "engine", *command, cwd=blobs, site=site)
        assert status == 3
        assert "pip install engine-sdk engine-plugin-cpu" in said


def test_both_distributions_together_are_one_clear_error(site: Path, blobs: Path, tmp_path: Path) -> None:
    for name, group in (("engine_sdk", ""), ("engine_plugin_cpu", "[engine.plugins]\nCPU = engine_cpu:CpuPlugin\n")):
        info = tmp_path / f"{name}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(group)
    for path in site.iterdir():
        (tmp_path / path.name).symlink_to(path)
    status, said = run(sys.executable, "-c", JOB, "mlp", cwd=blobs, site=tmp_path)
    assert status == 1
    assert "engine-sdk and engine-runtime are both installed, and have the same files" in said
    assert "pip uninstall engine-sdk engine-runtime engine-plugin-cpu" in said


def test_it_has_no_module_that_compiles() -> None:
    files = runtime_wheel.runtime_files(runtime_wheel.files_of_checkout(ROOT))
    modules = {path: data for path, data in files.items() if path.endswith(".py") and len(data) > 600}
    components = {path.split("/")[1].removesuffix(".py") for path in modules if path.startswith("engine/")}
    assert components & runtime_wheel.COMPILING == set()
    assert not any(b"\nimport onnx" in data or b"\nfrom google" in data for data in modules.values())
    assert sum(map(len, modules.values())) < 1_250_000  # all of it has 5 MB
    assert {"engine/core/core.py", "engine_cpu/stored_program.py", "engine/py.typed"} <= set(files)


def test_a_root_that_needs_more_is_named(tmp_path: Path) -> None:
    files = dict(runtime_wheel.files_of_checkout(ROOT))
    files["engine_cpu/request.py"] += b"\nimport engine.onnx\n"
    with pytest.raises(runtime_wheel.PartsError, match=r"engine_cpu imports engine\.onnx, which engine-runtime"):
        runtime_wheel.runtime_files(files)


@pytest.mark.slow
def test_the_wheel_installs_in_an_empty_environment(wheel: Path, blobs: Path) -> None:
    environment = wheel.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    status, said = run(python, "-W", "default", "-m", "pip", "install", wheel, cwd=blobs)
    assert status == 0, said
    status, said = run(python, "-c", JOB, *SMALL, cwd=blobs)
    assert status == 0, said
    assert said.splitlines()[-1] == "['engine', 'engine_cpu', 'numpy']"
    listing = "from importlib.metadata import distributions\nprint(*(each.name for each in distributions()))"
    status, said = run(python, "-c", listing, cwd=blobs)
    assert set(said.split()) - {"pip", "setuptools"} == {"engine-runtime", "numpy"}
    status, said = run(python, "-m", "engine", "doctor", cwd=blobs)
    assert status == 0, said
    assert "no problem was found" in said


@pytest.fixture(scope="module")
def made_for(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Path:
    """A folder with what a wheel for a CNN installs, numpy, the wheel, and the blob that was made with it."""
    folder = tmp_path_factory.mktemp("for")
    (folder / "cnn.onnx").write_bytes(seeded_network("mobilenet_v2", small=True).model.SerializeToString())
    for_wheels = ROOT / "dist" / "for"
    before = set(for_wheels.glob("*.whl"))
    command = [sys.executable, ROOT / "tools" / "wheels", "--for", folder / "cnn.onnx", "--local"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = set(for_wheels.glob("engine_runtime-*.whl")) - before or for_wheels.glob("engine_runtime-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (folder / "site" / name).symlink_to(site / name)
    (for_wheels / "cnn.blob").replace(folder / "cnn.blob")
    wheel.replace(folder / wheel.name)
    return folder


@pytest.mark.slow
def test_a_wheel_for_a_model_runs_it_and_names_what_it_leaves_out(made_for: Path, blobs: Path) -> None:
    site = made_for / "site"
    shutil.copy(blobs / "mobilenet_v2.npz", made_for / "cnn.npz")
    status, said = run(sys.executable, "-c", JOB, "cnn", cwd=made_for, site=site)
    assert status == 0, said
    status, said = run(
        sys.executable, "-c", JOB, "mobilenet_v2", cwd=blobs, site=site
    )  # compiled apart: the same version
    assert status == 0, said
    status, said = run(sys.executable, "-c", JOB, "lstm", cwd=blobs, site=site)
    assert status == 1
    assert "needs kernels that this build of the engine leaves out: " in said.splitlines()[-1]
    assert "recurrent for " in said.splitlines()[-1]
    assert "tools/wheels --for" in said.splitlines()[-1]
    status, said = run(
        sys.executable, "-c", "from engine import Core; Core().read_model('m.onnx')", cwd=blobs, site=site
    )
    assert "this engine-runtime is made for cnn.onnx, and only runs compiled blobs" in said.splitlines()[-1]
    tried = "from engine.cli.health.trial import _run_kernel; print(repr(_run_kernel()))"  # what `engine doctor` runs
    assert run(sys.executable, "-c", tried, cwd=blobs, site=site) == (0, "''\n")


@pytest.mark.slow
def test_a_wheel_for_a_cnn_has_at_most_a_third_of_the_library(made_for: Path) -> None:
    (part,) = (made_for / "site" / "engine").glob("_core.*.so")
    (whole,) = (ROOT / "engine").glob("_core.*.so")
    if os.environ.get("ENGINE_ISAS") == "all":  # otherwise the whole has fewer instruction sets, too
        assert part.stat().st_size <= whole.stat().st_size / 3


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("evaluated.blob", "has no plans, which a runtime needs: Det .* runs on the reference evaluator"),
        ("open.blob", "has no plans, which a runtime needs: the shapes of inputs are open"),
        ("auto.blob", "has no plans, which a runtime needs: it is not for CPU"),
        ("none.onnx", "no such file"),
    ],
)
def test_a_model_for_which_there_can_be_no_runtime_is_an_error(blobs: Path, file: str, why: str) -> None:
    command = [sys.executable, ROOT / "tools" / "wheels", "--for", blobs / file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(why, done.stderr, re.IGNORECASE), done.stderr
    assert "no runtime can be made for it" in done.stderr
    assert "Traceback" not in done.stderr
