"""`engine new-plugin`: the package that it writes passes the linters, type checks and suites unchanged; a refusal
leaves no files.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from engine.cli.main import main
from engine.errors import EngineError, PluginError, UnsupportedError
from engine.hosting import API_VERSION
from engine.testing.scaffold import PluginPlan, new_plugin
from engine.testing.scaffold.families import ELEMENTWISE, FAMILIES
from tests.testing.made_plugins import SOME_CHECKS, make, run

ALL = tuple(name for members in FAMILIES.values() for name in members)
PLANS = {
    "default": PluginPlan("PLAIN"),
    "everything": PluginPlan("ALL_OF_IT", (*ALL, "LayerNormalization", "Gelu", "ReduceSum"), True, True, True),
    "one": PluginPlan("ONE2", ("Conv",), has_export=True),
    "only the evaluator": PluginPlan("OTHERS", ("Erf", "LayerNormalization"), is_async=True),
    "moves": PluginPlan("MOVES", ("Reshape", "Concat"), has_export=True),
    "pools": PluginPlan("POOLS", ("GlobalMaxPool", "AveragePool")),
    "no shape is kept": PluginPlan("SUMS", ("ReduceSum",)),
}
RUNTIME = PluginPlan("SOME_RUNTIME", is_runtime=True)
WRITTEN = {**PLANS, "runtime": RUNTIME}

IMPORTS = """
import pytest
from engine.ir import f32
from engine.ops.cases import all_cases
from engine.testing import BehaviourSuite, OperatorSuite

CASES = {}
for case in all_cases().values():
    if case.inputs[0] is not None and case.inputs[0].type is f32:
        CASES.setdefault(case.op_type, case)
"""
SUITE = """
class Test{plan.prefix}(BehaviourSuite):
    device = "{plan.device}"

class Test{plan.prefix}Operators(OperatorSuite):
    device = "{plan.device}"
    test_onnx_case = None

    @pytest.mark.parametrize("case", [CASES[name] for name in {plan.operators}], ids=str)
    def test_case(self, core, case):
        super().test_case(core, case)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plugins")
    return {name: make(plan, folder) for name, plan in WRITTEN.items()}


@pytest.fixture(scope="module")
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(RUNTIME, tmp_path_factory.mktemp("runtime"))


def test_the_next_engine_is_not_excluded(made: dict[str, Path]) -> None:
    """The engine refuses plugins that it cannot run; a bound would refuse those that it can. The same for TEMPLATE."""
    template = Path(__file__).parents[1] / "plugins" / "template"
    for folder, plugin in ((template, "engine_template"), (made["default"], "engine_plain")):
        dependencies = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
        (engine,) = (each for each in dependencies if each.startswith("engine-sdk"))
        assert re.fullmatch(r"engine-sdk>=[\d.]+", engine)
        stated = re.search(
            r"^    api_version = (\d+)\b", (folder / "src" / plugin / "plugin.py").read_text(), re.MULTILINE
        )
        assert stated, "a number: API_VERSION would claim versions that nobody has seen"
        assert int(stated[1]) == API_VERSION


@pytest.mark.parametrize("tool", [["ruff", "check"], ["ruff", "format", "--check"]], ids=["lint", "format"])
def test_what_is_written_is_clean(made: dict[str, Path], tool: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *tool, *made.values()], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_written_is_typed(made: dict[str, Path]) -> None:
    root = str(Path(__file__).parents[1])
    sources = [str(folder / "src" / WRITTEN[name].package) for name, folder in made.items()]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", *sources],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_what_is_written_passes_the_suites(made: dict[str, Path], tmp_path: Path) -> None:
    """Some checks of each plugin's behaviour, and a case of each operator that one of them has."""
    file, report = tmp_path / "test_all.py", tmp_path / "score.json"
    file.write_text("".join([IMPORTS, *(SUITE.format(plan=plan) for plan in PLANS.values())]))
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", file.name, f"--engine-json={report}"]
    done = run(list(made.values()), *command, "-k", f"Operators or {SOME_CHECKS}", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for plan in PLANS.values():
        card = json.loads(report.with_stem(f"score-{plan.device}").read_text())
        assert card["score"] == 100, card["mend_first"]
        passed = [each["name"] for each in card["checks"] if each["outcome"] == "passed"]
        assert len(passed) > 5
        operators = {name.partition("[")[2].partition("/")[0] for name in passed if name.startswith("test_case[")}
        assert operators == set(plan.operators)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["everything", "runtime"])
def test_what_is_written_scores_full_marks(made: dict[str, Path], tmp_path: Path, name: str) -> None:
    """The plugin with the most features of the others passes all checks, and so does the one of a runtime."""
    report = tmp_path / "score.json"
    command = ["-m", "engine.cli.main", "conformance", WRITTEN[name].device, "--json", str(report)]
    done = run([made[name]], *command)
    score = json.loads(report.read_text())
    assert score["score"] == 100, score["mend_first"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(each["outcome"] == "passed" for each in score["checks"]) > 500


def test_a_plugin_of_a_runtime_scores_full_marks(runtime_folder: Path, tmp_path: Path) -> None:
    """Some checks of each area, and those of cancellation, profiles, narrow types and blobs."""
    report = tmp_path / "score.json"
    chosen = f"{SOME_CHECKS} or names_are_those or ends_before_it_is_done or bf16 or i4 or f8e4m3fn or foreign"
    command = ["-m", "engine.cli.main", "conformance", RUNTIME.device, "--json", str(report), "-k", chosen]
    done = run([runtime_folder], *command)
    score = json.loads(report.read_text())
    assert score["score"] == 100, score["mend_first"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"asynchronous", "export", "operators", "profiles"} <= {
        each["area"] for each in score["checks"] if each["outcome"] == "passed"
    }


ONNXRUNTIME = {
    "from engine_some_runtime import sample_runtime  # CHANGE\n": "",
    "from engine.lowering": "import onnxruntime\nfrom engine.lowering",
    "sample_runtime {sample_runtime.__version__}": "onnxruntime {onnxruntime.__version__}",
    "sample_runtime.Session(given.source)": "onnxruntime.InferenceSession(given.source)",
    "sample_runtime.RunOptions()": "onnxruntime.RunOptions()",
}
"""How `runtime.py` becomes the one of onnxruntime."""

WITH_ONNXRUNTIME = """
import io
import numpy as np
from engine import Core, ops
from engine.errors import UnsupportedError
from engine.ir import Constant, Model, Parameter, bf16, f32

core = Core()
x = Parameter(f32, ["N", 4], "x")
half = ops.Cast(x, to=bf16.onnx, friendly_name="half")
odd = ops.Add(half, half, friendly_name="odd")  # for which onnxruntime has no kernel in bf16
product = ops.MatMul(x, Constant(np.eye(4, dtype=np.float32)), friendly_name="product")
model = Model([ops.Relu(product, friendly_name="y"), half], [x])
value = np.array([[1, -2, 3, 4]], np.float32)
network = core.compile_model(model, "SOME_RUNTIME", {"PERF_COUNT": True})
request = network.create_infer_request()
result = request.infer({"x": value})
assert result["y"].tolist() == [[1, 0, 3, 4]] and result["half"].dtype == bf16.numpy
assert set(request.profiling_info.nodes[0].nodes) == {"product", "y", "half"}
blob = io.BytesIO()
network.export_model(blob)
assert core.import_model(blob.getvalue())({"x": value})["y"].tolist() == [[1, 0, 3, 4]]
try:
    core.compile_model(Model([odd], [x]), "SOME_RUNTIME")
except UnsupportedError as e:
    assert "SOME_RUNTIME cannot run `odd`" in str(e) and "onnxruntime" in str(e), e
else:
    raise AssertionError("claimed")
beside = core.compile_model(Model([ops.Relu(product), odd], [x]), "HETERO:SOME_RUNTIME,TEMPLATE")
assert set(beside.get_property("EXECUTION_DEVICES")) == {"SOME_RUNTIME", "TEMPLATE"}
print(beside({"x": value})["odd"].tolist())
"""


def test_a_real_runtime_takes_a_change_of_one_file(runtime_folder: Path, tmp_path: Path) -> None:
    """The whole plugin then has at most 150 lines."""
    folder = tmp_path / RUNTIME.distribution
    shutil.copytree(runtime_folder, folder)
    package = folder / "src" / RUNTIME.package
    (package / "sample_runtime.py").unlink()
    text = (package / "runtime.py").read_text()
    for old, new in ONNXRUNTIME.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (package / "runtime.py").write_text(text)
    assert sum(len(path.read_text().splitlines()) for path in package.glob("*.py")) <= 150
    done = run([folder], "-W", "error", "-c", WITH_ONNXRUNTIME)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[2.0, -4.0, 6.0, 8.0]]\n"


EXPORT = """
from engine import Core, ops
from engine.ir import Model, Parameter, f32

x = Parameter(f32, [2], "x")
Core().compile_model(Model([ops.Relu(x)], [x]), "SOME_RUNTIME").export_model("model.blob")
"""
IMPORT = """
from engine import Core
from engine.errors import BlobError

try:
    Core().import_model("model.blob")
except BlobError as e:
    print(e)
"""


def test_blobs_of_another_version_of_the_runtime_are_refused(runtime_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / RUNTIME.distribution
    shutil.copytree(runtime_folder, folder)
    assert run([folder], "-c", EXPORT).returncode == 0
    assert run([folder], "-c", IMPORT).stdout == ""
    sample = folder / "src" / RUNTIME.package / "sample_runtime.py"
    sample.write_text(sample.read_text().replace('__version__ = "1.0"', '__version__ = "2.0"'))
    refusal = run([folder], "-c", IMPORT).stdout
    assert "sample_runtime 1.0" in refusal
    assert "sample_runtime 2.0" in refusal


def test_the_plugins_own_tests_pass(made: dict[str, Path]) -> None:
    own = {
        name: [str(path) for path in sorted(folder.glob("tests/test_*.py")) if path.stem != "test_suites"]
        for name, folder in made.items()
    }
    # These have no example.
    assert {name for name, files in own.items() if not files} == {"only the evaluator", "no shape is kept", "runtime"}
    files = [file for found in own.values() for file in found]
    done = run(list(made.values()), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{len(files)} passed in", done.stdout, re.MULTILINE), done.stdout


def test_the_command_says_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-plugin", "ACME", "--ops", "Relu,Add", "--async", "--export"]) == 0
    said = capsys.readouterr().out
    assert 'pip install -e "engine-plugin-acme[test]"' in said
    assert (tmp_path / "engine-plugin-acme/src/engine_acme/lowering/elementwise.py").exists()
    assert not list((tmp_path / "engine-plugin-acme").rglob("*conv*"))
    assert {path.name for path in (tmp_path / "engine-plugin-acme").iterdir()} == {
        ".github", ".gitignore", "README.md", "pyproject.toml", "src", "tests",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("device", "options", "error", "words"),
    [
        ("acme", {}, PluginError, "upper-case"),
        ("2FAST", {}, PluginError, "upper-case"),
        ("A/B", {}, PluginError, "upper-case"),
        ("", {}, PluginError, "upper-case"),
        ("A" * 33, {}, PluginError, "at most 32"),
        ("ACME_", {}, PluginError, "not the name of a device"),
        ("CPU", {}, PluginError, "installed already: engine_cpu"),
        ("ACME", {"operators": ()}, PluginError, "at least one"),
        ("ACME", {"operators": ("Convolution",)}, UnsupportedError, "'Convolution' is not an operator of ONNX"),
        ("ACME", {"operators": ("Relu", "Loop")}, UnsupportedError, "Loop: it has a subgraph"),
        ("ACME", {"operators": ("NonZero",)}, UnsupportedError, "NonZero: its result"),
        ("ACME", {"operators": ("RandomNormalLike",)}, UnsupportedError, "RandomNormalLike: its result"),
        ("ACME", {"operators": ("StringConcat",)}, UnsupportedError, "float32"),
        ("ACME", {"operators": ("Relu",), "is_native": True}, PluginError, "matrix product"),
        ("ACME", {"operators": ("Relu",), "is_runtime": True}, PluginError, "leave out --ops, --async, --export"),
        ("ACME", {"has_export": True, "is_runtime": True}, PluginError, "always exports"),
    ],
)
def test_wrong_plans_are_refused(
    device: str, options: dict[str, object], error: type[EngineError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        new_plugin(PluginPlan(device, **options), tmp_path / "new")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, words in (("full", r"not empty: it has 'notes\.txt'"), ("file", "is a file")):
        with pytest.raises(PluginError, match=words):
            new_plugin(PluginPlan("ACME"), tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "notes.txt"]


@pytest.mark.parametrize("where", [".", "../link"])
def test_an_empty_folder_is_filled_and_stays_the_same_folder(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be the current folder of a shell, which must not lose it."""
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "link").symlink_to(empty)
    monkeypatch.chdir(empty)
    before = empty.stat().st_ino
    assert main(["new-plugin", "ACME", "--ops", "Relu, Add", "--dir", where]) == 0
    assert f'pip install -e "{where}[test]"' in capsys.readouterr().out
    assert Path("pyproject.toml").exists()
    assert empty.stat().st_ino == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link"]


def test_a_package_of_that_name_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine_acme.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match=r"a package engine_acme is installed already, in .*engine_acme\.py"):
        new_plugin(PluginPlan("ACME"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("folder", ["empty", "new", "new/in/another"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_a_failure_leaves_nothing_behind(
    folder: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    writes = itertools.count()
    write_text = Path.write_text

    def fail(self: Path, *arguments: object, **options: object) -> int:
        if next(writes) == 5:
            raise error
        return write_text(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(type(error)):
        new_plugin(PluginPlan("ACME"), tmp_path / folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_every_function_of_numpy_has_a_case() -> None:
    """So that the suites run all of them."""
    assert set(ELEMENTWISE) <= set(FAMILIES["elementwise"])
