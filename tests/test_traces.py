"""What a change touches: for an example of each kind, docs/architecture.md lists all files with its name."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "architecture.md"
ROW: Final = re.compile(r"\| (?P<kind>[^|]+) \| `(?P<names>[^|]+)` \| (?P<count>\d+) \| (?P<files>[^|]+) \|")
SOURCES: Final = ("engine", "plugins/*/src", "apps/*/src", "csrc")
SUFFIXES: Final = frozenset({".py", ".def", ".cpp", ".hpp", ".h", ".cl"})
UNRELATED: Final = ("csrc/tests/", "engine/onnx/contrib/")
"""Tests, and what the operators of another system may have as attributes."""


def rows() -> list[re.Match[str]]:
    return [found for line in PAGE.read_text(encoding="utf-8").splitlines() if (found := ROW.fullmatch(line))]


def names_in(path: Path) -> set[str]:
    """The names in the code of a file, and the texts that are one word; not what comments and docstrings mention."""
    text = path.read_text(encoding="utf-8")
    if path.parent.name == "commands":  # a command has the name of its module
        return {path.stem}
    if path.suffix != ".py":
        return set(re.findall(r"\w+", re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)))
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            found.add(token.string)
        elif token.type == tokenize.STRING:
            found.add(token.string.strip("rbf\"'").rpartition(".")[2])  # a class may be named with its module
    return found


@pytest.fixture(scope="module")
def names() -> dict[str, set[str]]:
    files = [file for folder in SOURCES for file in ROOT.glob(f"{folder}/**/*") if file.suffix in SUFFIXES]
    paths = {file.relative_to(ROOT).as_posix(): file for file in files}
    return {path: names_in(file) for path, file in paths.items() if not path.startswith(UNRELATED)}


def test_the_table_has_every_kind() -> None:
    assert [row["kind"] for row in rows()] == [
        "a pointwise operator", "a pass", "an element type", "an instruction set", "a property of a device",
        "a property of all devices", "a command", "a device",
    ]  # fmt: skip


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["kind"].replace(" ", "-"))
def test_a_change_touches_the_files_that_the_table_names(row: re.Match[str], names: dict[str, set[str]]) -> None:
    wanted = set(row["names"].split("` or `"))
    found = sorted(path for path, has in names.items() if has & wanted)
    listed = sorted(re.findall(r"`([^`]+)`", row["files"]))
    assert found == listed, "name these files in docs/architecture.md, or fewer of them in the code"
    assert len(found) == int(row["count"])
