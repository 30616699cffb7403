"""The guide of transformations does what it says: its code runs, and prints what stands there.

If this fails, what a plugin author copies from it is wrong.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "transformations.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MADE_NAME = re.compile(r"\b([A-Z]\w*)_\d+\b")


def test_the_code_runs_and_prints_what_stands_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8")
    found = [(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in BLOCK.finditer(text)]
    assert [language for language, _, _ in found].count("python") > 30
    namespace: dict[str, Any] = {"__name__": "transformations"}
    for position, (language, source, line) in enumerate(found):
        if language != "python":
            continue
        # Blank lines before it, so that a traceback shows the line of the document.
        code = compile("\n" * (line - 1) + source, str(GUIDE), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        following = found[position + 1] if position + 1 < len(found) else ("", "", 0)
        shown = MADE_NAME.sub(r"\1_NNN", printed.getvalue())
        assert shown == (following[1] if following[0] == "text" else ""), f"{GUIDE}:{line}"
