"""The quick start does what it says: its code runs, and prints what stands there.

If this fails, the first thing that a new user tries does not work.
"""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

QUICK_START = Path(__file__).parent.parent / "docs" / "quick-start.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str, int]]:
    """Language, content and first line of each code block."""
    return [(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in BLOCK.finditer(text)]


def test_the_code_runs_and_prints_what_stands_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "quick_start"}
    found = blocks(QUICK_START.read_text(encoding="utf-8"))
    assert [language for language, _, _ in found].count("python") > 10
    for position, (language, source, line) in enumerate(found):
        if language != "python":
            continue
        # Blank lines before it, so that a traceback shows the line of the document.
        code = compile("\n" * (line - 1) + source, str(QUICK_START), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        following = found[position + 1] if position + 1 < len(found) else ("", "", 0)
        assert printed.getvalue() == (following[1] if following[0] == "text" else ""), f"{QUICK_START}:{line}"


def test_the_package_file_declares_the_device_of_the_code() -> None:
    text = QUICK_START.read_text(encoding="utf-8")
    ((source, _),) = [(source, line) for language, source, line in blocks(text) if language == "toml"]
    project = tomllib.loads(source)["project"]
    assert project["entry-points"]["engine.plugins"] == {"MINE": "engine_mine:MyPlugin"}
    assert "class MyPlugin(Plugin):" in text
    assert '    name = "MINE"' in text
