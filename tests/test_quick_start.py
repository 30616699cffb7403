"""The quick start and the guides do what they say: their code and commands run, and print what stands there.

If this fails, the first thing that a new user tries does not work.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from engine import Core
from engine.tools.main import main

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
QUICK_START = DOCS / "quick-start.md"
TUTORIAL = DOCS / "language-models.md"
REMOTE = DOCS / "remote-tensors.md"
EXTENSIONS = DOCS / "extensions.md"
GUIDES = {
    QUICK_START: 11, DOCS / "hetero.md": 11, DOCS / "stateful-models.md": 6, TUTORIAL: 11, REMOTE: 6, EXTENSIONS: 4,
}  # fmt: skip
"""Each guide, and how many blocks of Python it has at least."""
NEEDED = {TUTORIAL: ("llguidance", "onnxscript", "torch", "transformers")}
"""The packages of the extra `tutorial`."""
DEVICES = {REMOTE: "OPENCL"}
"""The devices that need more than a package."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str, int]]:
    """Language, content and first line of each code block."""
    return [(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in BLOCK.finditer(text)]


def run_command(line: str) -> None:
    """Run a command of the engine, in this process, an example, or a compiler; it must succeed."""
    program, *arguments = shlex.split(line)
    if program == "cc":
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        done = subprocess.run(
            line, shell=True, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return
    if program == "engine":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(arguments) == 0, f"{line}: {printed.getvalue()}"
        return
    assert program == "python", line
    command = [sys.executable, ROOT / arguments[0], *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


# Of torch's own use of its types, in the export.
@pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated:FutureWarning")
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_code_runs_and_prints_what_stands_below_it(
    guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in NEEDED.get(guide, ()):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'engine-sdk[tutorial]'")
    if (device := DEVICES.get(guide)) and device in (missing := Core().unavailable_devices):
        pytest.skip(str(missing[device]))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "guide"}
    found = blocks(guide.read_text(encoding="utf-8"))
    assert [language for language, _, _ in found].count("python") >= GUIDES[guide]
    for position, (language, source, line) in enumerate(found):
        if language == "c":  # its first comment begins with the name of the file
            (tmp_path / source.split()[1].rstrip(":")).write_text(source, encoding="utf-8")
        if language == "console":
            for command in source.splitlines():
                run_command(command)
        if language != "python":
            continue
        # Blank lines before it, so that a traceback shows the line of the document.
        code = compile("\n" * (line - 1) + source, str(guide), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        following = found[position + 1] if position + 1 < len(found) else ("", "", 0)
        assert printed.getvalue() == (following[1] if following[0] == "text" else ""), f"{guide}:{line}"


def test_the_package_file_declares_the_device_of_the_code() -> None:
    text = QUICK_START.read_text(encoding="utf-8")
    ((source, _),) = [(source, line) for language, source, line in blocks(text) if language == "toml"]
    project = tomllib.loads(source)["project"]
    assert project["entry-points"]["engine.plugins"] == {"MINE": "engine_mine:MyPlugin"}
    assert "class MyPlugin(Plugin):" in text
    assert '    name = "MINE"' in text


@pytest.mark.parametrize("last_class", ["MyPlugin", "ExportingPlugin"])
def test_the_devices_pass_the_behaviour_suite_as_the_text_says(tmp_path: Path, last_class: str) -> None:
    """Packaged by the text's own project file, with the text's own test file."""
    text = QUICK_START.read_text(encoding="utf-8")
    python, toml = ([source for kind, source, _ in blocks(text) if kind == language] for language in ("python", "toml"))
    # What follows a class that is not indented tries it out.
    classes = "".join(
        re.split(r"^(?=core\b)", source, flags=re.MULTILINE)[0]
        for source in python
        if re.search(r"^class \w+\((Plugin|MyPlugin)\):", source, re.MULTILINE)
    )
    (suite,) = [source for source in python if "BehaviourSuite" in source]
    project = tomllib.loads(toml[0])
    package = project["tool"]["flit"]["module"]["name"]
    assert project["project"]["entry-points"]["engine.plugins"] == {"MINE": f"{package}:MyPlugin"}
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(classes, encoding="utf-8")
    info = tmp_path / f"{package}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[engine.plugins]\nMINE = {package}:{last_class}\n", encoding="utf-8")
    (tmp_path / "test_mine.py").write_text(suite, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "test_mine.py",
        *(["-k", "not Operators"] if last_class != "MyPlugin" else []),  # results do not depend on the class
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
