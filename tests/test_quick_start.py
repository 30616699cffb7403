"""The device of the quick start is a package that its users can install, and passes the suite that it names.

If this fails, the first plugin that a new author copies does not work.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.snippets import DOCS, blocks
from tests.testing.made_plugins import SOME_CHECKS

QUICK_START = DOCS / "quick-start.md"


def sources(language: str) -> list[str]:
    return [block.source for block in blocks(QUICK_START) if block.language == language]


def test_the_package_file_declares_the_device_of_the_code() -> None:
    text = QUICK_START.read_text(encoding="utf-8")
    (source,) = sources("toml")
    project = tomllib.loads(source)["project"]
    assert project["entry-points"]["engine.plugins"] == {"MINE": "engine_mine:MyPlugin"}
    assert "class MyPlugin(Plugin):" in text
    assert '    name = "MINE"' in text


@pytest.mark.parametrize(
    ("last_class", "checks"),
    [
        ("MyPlugin", f"{SOME_CHECKS} or Operators and (Add or Mul or Relu)"),
        ("ExportingPlugin", SOME_CHECKS),
        pytest.param("MyPlugin", "", marks=pytest.mark.slow),
        pytest.param("ExportingPlugin", "not Operators", marks=pytest.mark.slow),  # results do not depend on the class
    ],
)
def test_the_devices_pass_the_behaviour_suite_as_the_text_says(tmp_path: Path, last_class: str, checks: str) -> None:
    """Packaged by the text's own project file, with the text's own test file."""
    python, toml = sources("python"), sources("toml")
    # Lines after a class that are not indented try it out.
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
        "-k",
        checks,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
