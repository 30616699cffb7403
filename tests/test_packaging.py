"""Built packages install and run away from the checkout: no file is missing, and none is superfluous."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info", "*.so")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, fails: bool = False, **variables: str) -> str:
    """Run a command, which must succeed unless it `fails`, without a trace of this checkout in its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert (result.returncode != 0) is fails, result.stdout
    return result.stdout


def build(folder: Path, *options: str | Path, **variables: str) -> None:
    run(sys.executable, "-m", "build", *options, folder, cwd=folder.parent, **variables)


def packaged(package: Path) -> set[str]:
    """The files of a package that have to be in its wheel: all but what Python and the builds leave there."""
    files = (path for path in package.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".so"))
    return {path.relative_to(package.parent).as_posix() for path in files}


def in_wheel(wheel: Path, package: str) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith(f"{package}/")}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout in which a module, deleted from the sources, is left in the build folder."""
    copy = tmp_path_factory.mktemp("checkout") / "copy"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    if (ROOT / "build" / "native").is_dir():  # the objects of this checkout, so that only linking is left
        shutil.copytree(ROOT / "build" / "native", copy / "build" / "native")
    platform_folder = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    stale = copy / "build" / platform_folder / "engine" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("raise AssertionError('deleted, and installed all the same')\n")
    return copy


@pytest.fixture(scope="module")
def distributions(checkout: Path) -> Path:
    """The source distributions of the root and of every plugin and application, and the wheels built from them."""
    out = checkout.parent / "dist"
    # A source that the archive lacks is compiled anew, which fails; the other objects come from the checkout.
    objects = str(checkout / "build" / "native")
    build(checkout, "--no-isolation", "--outdir", out, ENGINE_BUILD_OBJECTS=objects)
    for folder in sorted([*(checkout / "plugins").iterdir(), *(checkout / "apps").iterdir()]):
        build(folder, "--outdir", out)
    return out


@pytest.fixture(scope="module")
def bin_folder(distributions: Path) -> Path:
    """The scripts of a fresh virtual environment that has the wheels of engine and plugins and nothing else."""
    environment = distributions.parent / "venv"
    run(sys.executable, "-m", "venv", environment, cwd=distributions)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    run(scripts / "python", "-m", "pip", "install", *engine_and_plugins(distributions), cwd=distributions)
    return scripts


def engine_and_plugins(distributions: Path) -> list[Path]:
    return [*distributions.glob("engine_sdk-*.whl"), *distributions.glob("engine_plugin_*.whl")]


def names(kind: str) -> Iterable[str]:
    return sorted(path.name for path in (ROOT / kind).iterdir() if path.is_dir())


def test_the_wheel_has_every_file_of_the_package(distributions: Path) -> None:
    (wheel,) = distributions.glob("engine_sdk-*.whl")
    files = in_wheel(wheel, "engine")
    (native,) = (name for name in files if name.endswith(".so"))
    assert native.startswith("engine/_core.")
    assert files - {native} == packaged(ROOT / "engine")


@pytest.mark.parametrize("name", names("plugins"))
def test_the_wheel_of_a_plugin_has_every_file_and_its_entry_point(distributions: Path, name: str) -> None:
    (wheel,) = distributions.glob(f"engine_plugin_{name}-*.whl")
    assert in_wheel(wheel, f"engine_{name}") == packaged(ROOT / "plugins" / name / "src" / f"engine_{name}")
    with zipfile.ZipFile(wheel) as archive:
        (table,) = (file for file in archive.namelist() if file.endswith("entry_points.txt"))
        assert "[engine.plugins]" in archive.read(table).decode()


@pytest.mark.parametrize("name", names("apps"))
def test_the_wheel_of_an_application_has_every_file(distributions: Path, name: str) -> None:
    (wheel,) = distributions.glob(f"engine_{name}-*.whl")
    assert in_wheel(wheel, f"engine_{name}") == packaged(ROOT / "apps" / name / "src" / f"engine_{name}")


def test_the_source_distribution_has_licence_documents_and_native_sources(distributions: Path) -> None:
    (source,) = distributions.glob("engine_sdk-*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "examples/main_job.py"}
    native = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*.?pp")}
    assert names >= native | {"csrc/kernels/families.def", "csrc/native_build.py", "setup.py"}


def test_a_module_deleted_since_the_last_build_is_not_installed(checkout: Path, tmp_path: Path) -> None:
    build(checkout, "--no-isolation", "--wheel", "--outdir", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert "engine/stale.py" not in in_wheel(wheel, "engine")
    assert "engine/errors.py" in in_wheel(wheel, "engine")


def test_the_main_job_runs_on_what_is_installed(bin_folder: Path, tmp_path: Path) -> None:
    script = shutil.copy(ROOT / "examples" / "main_job.py", tmp_path)
    output = run(bin_folder / "python", "-W", "error", script, "squeezenet", cwd=tmp_path)
    assert f"engine from {bin_folder.parent}" in output
    assert output.count("ok: squeezenet on CPU") == 2
    assert output.count("ok: squeezenet on TEMPLATE") == 2


def test_the_example_of_the_readme_runs(bin_folder: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    output = run(bin_folder / "python", "-W", "error", "example.py", cwd=tmp_path)
    # OPENCL is among them where there is a runtime.
    assert {"CPU", "HETERO", "TEMPLATE"} <= set(ast.literal_eval(output.splitlines()[0]))
    assert output.splitlines()[-1] == "(1, 1000, 1, 1)"


def test_started_in_the_checkout_the_example_says_where_it_runs(bin_folder: Path, checkout: Path) -> None:
    """The sources, which are not compiled, come before what is installed."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    output = run(bin_folder / "python", "-c", example, cwd=checkout, fails=True)
    assert f"Python imports engine from {checkout / 'engine'}, where it is not compiled" in output
    assert f"start Python outside {checkout}, or compile engine there" in output


def test_the_native_core_runs(bin_folder: Path, tmp_path: Path) -> None:
    code = "from engine import native; print(native.kernels(), native.PlanBuilder().build().isa)"
    assert "copy" in run(bin_folder / "python", "-W", "error", "-c", code, cwd=tmp_path)


def test_the_command_line_is_installed(bin_folder: Path, tmp_path: Path) -> None:
    assert "TEMPLATE" in run(bin_folder / "engine", "devices", cwd=tmp_path)


def test_the_readme_has_exactly_two_set_up_commands() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line.split("&&")[-1].strip() for line in lines if line.startswith("pip install ")] == [
        "python examples/main_job.py",
        "pytest -n auto --dist loadfile",
    ]
