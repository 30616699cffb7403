"""The tutorial on writing a plugin, followed from the first line to the last."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from engine.testing.scaffold import PluginPlan
from tests.snippets import DOCS, blocks
from tests.testing.made_plugins import SOME_CHECKS, describe, run

ACME = PluginPlan("ACME")


def fits(expected: str, printed: str) -> bool:
    """Whether each line was printed, in order; `...` stands for anything."""
    pattern = ".*".join(
        ".*".join(map(re.escape, line.rstrip().split("..."))) for line in expected.strip("\n").splitlines()
    )
    return re.search(pattern, printed, re.DOTALL) is not None


def command(folder: Path, line: str, checks: str) -> str:
    """Run a command of the engine; its comment gives the exit code, if it is not 0. A whole score is of `checks`."""
    program, _, comment = line.partition("  # ")
    words = shlex.split(program)
    assert words[0] == "engine", line
    if words[1] == "conformance" and "-k" not in words:
        words += ["-k", checks]
    done = run([folder / ACME.distribution], "-m", "engine.cli.main", *words[1:], cwd=folder)
    wanted = int(comment.removeprefix("exit code ")) if comment else 0
    assert done.returncode == wanted, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("checks", [SOME_CHECKS, pytest.param("", id="all", marks=pytest.mark.slow)])
def test_the_tutorial(tmp_path: Path, checks: str) -> None:
    printed, followed = "", 0
    for block in blocks(DOCS / "write-a-plugin.md"):
        language, content, where = block.language, block.source, str(block)
        first = content.partition("\n")[0]
        kind, _, path = first.removeprefix("# ").partition(": ")
        if language == "console":
            printed = ""
            for each in re.findall(r"^\$ (.*)$", content, re.MULTILINE):
                if each.startswith("pip install -e"):
                    describe(ACME, tmp_path / ACME.distribution)  # installed, without a package index
                elif not each.startswith("pip install"):
                    printed += command(tmp_path, each, checks)
        elif language == "text":
            assert fits(content, printed), f"{where}: printed\n{printed}"
        elif kind == "file":
            (tmp_path / path).write_text(content.partition("\n")[2], encoding="utf-8")
        else:
            done = run([tmp_path / ACME.distribution], "-c", content, cwd=tmp_path)
            assert done.returncode == 0, f"{where}: {done.stderr}"
            printed = done.stdout
        followed += 1
    assert followed >= 17
    # Its result is as clean as its beginning.
    done = run([tmp_path / ACME.distribution], "-m", "ruff", "check", ".")
    assert done.returncode == 0, done.stdout
    if not checks:
        command(tmp_path, "engine conformance ACME -k TestBehaviour", checks)
