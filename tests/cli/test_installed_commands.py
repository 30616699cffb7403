"""Commands of other distributions, which add them by the entry-point group `engine.commands`.

If these fail, a vendor who does as docs/add-a-command.md says has no command, or a broken package takes the engine's
own commands with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FIXTURE = Path(__file__).parents[1] / "fixtures" / "third_party_command"
Engine = Callable[..., Any]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed a distribution with a command."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(FIXTURE, folder / "sources")  # building leaves files beside the sources
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-index", "--no-deps"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", folder / "site", folder / "sources"], cwd=folder, check=True
    )
    return folder / "site"


def add(site: Path, distribution: str, entry: str, **modules: str) -> None:
    """A distribution with one entry point, as an installer would leave it, and its modules."""
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[engine.commands]\n{entry}\n")
    for name, text in modules.items():
        (site / f"{name}.py").write_text(text)


GOOD = """
SUMMARY, DESCRIPTION, EXAMPLES = "say hello", "Say hello.", "engine hello  # say it"
def add_arguments(parser): pass
def run(args): print("hello"); return 0
"""


def test_an_installed_command_is_listed_and_runs(installed: Path, files: Path, engine_process: Engine) -> None:
    done = engine_process("--help", path=str(installed))
    assert (done.code, done.err) == (0, "")
    assert "count 100% of the operators of a model" in " ".join(done.out.split())
    done = engine_process("acme-count", files / "basic.onnx", "--json", path=str(installed))
    assert (done.code, done.err) == (0, "")
    assert sum(json.loads(done.out).values()) > 0
    done = engine_process("acme-count", "x.txt", path=str(installed))
    assert done.code == 2
    assert "engine acme-count: error: expected an ONNX model, got x.txt" in done.err
    done = engine_process("acme-count", "missing.onnx", path=str(installed))
    assert done.code == 3
    assert done.err.startswith("engine acme-count: error: ")
    assert "examples:" in engine_process("acme-count", "--help", path=str(installed)).out


def test_a_package_is_imported_when_its_command_runs(installed: Path) -> None:
    code = "import sys; from engine.cli.main import main\ntry: main({!r})\nexcept SystemExit: pass\n"
    code += "print(sorted(each for each in sys.modules if each.startswith(('acme', 'engine.cli.commands.'))))"

    def imported(*arguments: str) -> str:
        paths = [str(installed), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, "-c", code.format(list(arguments))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.splitlines()[-1]

    assert imported("passes", "list") == "['engine.cli.commands.passes']"
    assert "acme_tools.counting" not in imported("--help"), "the large part is left for `run`"
    assert "acme_tools.count" in imported("--help")


@pytest.mark.parametrize(
    ("entry", "text", "reason"),
    [
        ("bad = bad", "import missing_package", "bad: ModuleNotFoundError: No module named 'missing_package'"),
        ("bad = bad", "raise SystemExit('no licence')", "bad: SystemExit: no licence"),
        ("bad = absent", "", "absent: ModuleNotFoundError: No module named 'absent'"),
        ("bad = bad:command", "", "bad:command: AttributeError: module 'bad' has no attribute 'command'"),
        ("bad = bad", GOOD.replace("SUMMARY,", "OTHER,"), "bad: expected a text SUMMARY; got None"),
        ("bad = bad", GOOD.replace('"say hello"', r'"say\nhello"'), r"expected one line as SUMMARY; got 'say\nhello'"),
        ("bad = bad", GOOD.replace("def run", "def walk"), "bad: expected a function run; got None"),
        ("bad = bad", GOOD.replace("pass", "1 / 0"), "add_arguments failed: ZeroDivisionError: division by zero"),
        ("bad = bad", GOOD.replace("pass", "parser.add_argument('--debug')"), "add_arguments failed: ArgumentError"),
    ],
)
def test_a_command_that_cannot_be_imported_spoils_no_other(
    entry: str, text: str, reason: str, tmp_path: Path, engine_process: Engine
) -> None:
    add(tmp_path, "broken-tools", entry, bad=text)
    add(tmp_path, "good-tools", "hello = good", good=GOOD)
    done = engine_process("--help", path=str(tmp_path))
    assert (done.code, done.err) == (0, "")
    shown = " ".join(done.out.split())
    assert "hello say hello" in shown
    assert "commands that cannot be used: bad of broken-tools 1.0: " in shown
    assert " ".join(reason.split()) in shown
    assert "repair or uninstall broken-tools" in shown
    assert engine_process("hello", path=str(tmp_path)).out == "hello\n"
    assert engine_process("passes", "list", path=str(tmp_path)).code == 0
    done = engine_process("bad", path=str(tmp_path))
    assert done.code == 3
    assert done.err.startswith("engine bad: error: the command of broken-tools 1.0 cannot be used: ")
    assert "Traceback" in engine_process("bad", "--debug", path=str(tmp_path)).err


def test_two_commands_of_one_name(tmp_path: Path, engine_process: Engine) -> None:
    add(tmp_path, "first-tools", "hello = first", first=GOOD)
    add(tmp_path, "second-tools", "hello = second", second=GOOD)
    done = engine_process("hello", path=str(tmp_path))
    assert (done.code, done.out) == (3, "")
    assert "first-tools 1.0" in done.err
    assert "second-tools 1.0" in done.err
    assert "they have the same name hello; uninstall all but one of them" in done.err
    shown = " ".join(engine_process("--help", path=str(tmp_path)).out.split())
    assert "hello of first-tools 1.0 and of second-tools 1.0: they have the same name hello" in shown or (
        "hello of second-tools 1.0 and of first-tools 1.0: they have the same name hello" in shown
    )
    assert engine_process("passes", "list", path=str(tmp_path)).code == 0


def test_no_distribution_replaces_a_command_of_the_engine(tmp_path: Path, engine_process: Engine) -> None:
    add(tmp_path, "other-tools", "passes = other", other=GOOD)
    done = engine_process("passes", "list", path=str(tmp_path))
    assert (done.code, done.err) == (0, "")
    assert done.out != "hello\n"
    shown = " ".join(engine_process("--help", path=str(tmp_path)).out.split())
    assert "passes of other-tools 1.0: the engine has a command passes of its own" in shown


def test_a_name_that_is_no_word_is_refused(tmp_path: Path, engine_process: Engine) -> None:
    add(tmp_path, "other-tools", "Hello_World = other", other=GOOD)
    shown = " ".join(engine_process("--help", path=str(tmp_path)).out.split())
    assert "its name 'Hello_World' is not lower-case words and numbers, joined by hyphens" in shown


def test_an_internal_error_names_the_distribution(tmp_path: Path, engine_process: Engine) -> None:
    add(tmp_path, "good-tools", "hello = good", good=GOOD.replace('print("hello")', "1 / 0"))
    done = engine_process("hello", path=str(tmp_path))
    assert done.code == 4
    assert "engine hello: internal error of good-tools 1.0; this is a bug, please report it" in done.err
