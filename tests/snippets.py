"""The blocks of code in documents, and how they run.

A block that does not run has an HTML comment above it, which readers do not see: `<!-- not run: REASON -->`. One that
prints what differs from run to run, or machine to machine, has `<!-- output varies: REASON -->`.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_serve import command as serve

from engine.cli.discovery import FoundCommand, list_commands
from engine.cli.main import main, make_parser

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CODE = ("python", "py", "console", "c", "cpp")
"""The languages of blocks that do something; others show text or a file."""
_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>not run|output varies): (?P<reason>[^>]+) -->\n)?^```(?P<language>\w*)\n(?P<source>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_MADE_NAME = re.compile(r"\b([A-Z]\w*)_\d+\b")
APPS = () if any(each.name == "serve" for each in list_commands()[0]) else (FoundCommand("serve", serve),)
"""The commands of applications that are not installed here."""
_PYTHON_TOOLS = ("mkdocs", "mypy", "pytest", "ruff")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a document; `line` is the first line of its content."""

    path: Path
    line: int
    language: str
    source: str
    note: str
    reason: str

    @property
    def is_run(self) -> bool:
        """Whether it is code that runs."""
        return self.language in CODE and self.note != "not run"

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """The blocks of a document, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            path,
            text.count("\n", 0, m.start("source")) + 1,
            m["language"],
            m["source"],
            m["note"] or "",
            m["reason"] or "",
        )
        for m in _BLOCK.finditer(text)
    ]


def commands(block: Block) -> list[str]:
    """The command lines of a block, without prompts and continued lines joined."""
    joined = block.source.replace("\\\n", " ")
    lines = (line.removeprefix("$ ") for line in joined.splitlines())
    return [line for line in lines if line.strip() and not line.startswith(" ")]


def run_document(path: Path, folder: Path, namespace: dict[str, Any]) -> None:
    """Run the blocks of a document in the current folder, as one script, and compare what they print."""
    found = blocks(path)
    for block, following in zip(found, [*found[1:], None], strict=True):
        if not block.is_run:
            continue
        expected = following.source if following is not None and following.language == "text" else ""
        if block.language == "c":  # its first comment begins with the name of the file
            (folder / block.source.split()[1].rstrip(":")).write_text(block.source, encoding="utf-8")
        elif block.language == "console":
            for line in commands(block):
                run_command(line, str(block))
        elif block.language == "python":
            printed = _printed(block, namespace)
            if "_NNN" in expected:  # names that the engine makes have numbers
                printed = _MADE_NAME.sub(r"\1_NNN", printed)
            assert printed == expected or block.note == "output varies", str(block)
        else:
            raise AssertionError(f"{block}: nothing runs {block.language}; say why above it: <!-- not run: ... -->")


def _printed(block: Block, namespace: dict[str, Any]) -> str:
    # Blank lines before it, so that a traceback shows the line of the document.
    code = compile("\n" * (block.line - 1) + block.source, str(block.path), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    return printed.getvalue()


def run_command(line: str, where: str = "") -> None:
    """Run a command of the engine, in this process, an example, or a compiler; it must succeed."""
    program, *arguments = shlex.split(line, comments=True)
    if program == "cc":
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        done = subprocess.run(
            line, shell=True, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{where} {line}: {done.stdout}{done.stderr}"
    elif program == "engine":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(arguments) == 0, f"{where} {line}: {printed.getvalue()}"
    elif program == "python":
        command = [sys.executable, str(ROOT / arguments[0]), *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{where} {line}: {done.stdout}{done.stderr}"
    else:
        check_command(line, where)
        assert line.startswith("pip install "), f"{where}: nothing runs {program}; say why above the block"


def check_command(line: str, where: str) -> None:
    """Check a command that does not run: the engine's commands parse, and files, modules and packages exist."""
    plain = re.sub(r"\$\([^)]*\)", "", re.sub(r"\s+#\s.*", "", line))  # without substitutions and comments
    for part in re.split(r"&&|\|", plain):
        words = shlex.split(part)
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        program, *arguments = words
        if program == "engine":
            make_parser([*list_commands()[0], *APPS]).parse_args(arguments)
        elif program == "python" and arguments[0] == "-m":
            assert arguments[1] == "pytest" or list(ROOT.glob(f"{arguments[1].replace('.', '/')}*")), f"{where}: {line}"
        elif program == "python" or "/" in program:
            script = arguments[0] if program == "python" else program
            assert (ROOT / script).is_file(), f"{where}: {line}"
        elif (program, *arguments[:1]) == ("pip", "install"):
            for package in arguments[1:]:
                assert package.startswith("-") or _is_known(package), f"{where}: {package} in {line}"
        else:
            assert program in (*_PYTHON_TOOLS, "clang-format", "cd", "docker"), f"{where}: {line}"


def _is_known(package: str) -> bool:
    """Whether a folder of the checkout, a distribution that it has, with these extras, or one that the page names."""
    name, _, extras = package.rstrip("]").partition("[")
    if name.startswith("."):
        return _has_extras(ROOT, extras) if name == "." else any(ROOT.glob(name.removeprefix("./"))) and not extras
    if name == "engine-runtime":  # of the same sources
        return not extras
    if name == "engine-sdk":
        return _has_extras(ROOT, extras)
    if (folder := ROOT / "apps" / name.removeprefix("engine-")).is_dir():
        return _has_extras(folder, extras)
    if name.startswith("engine-plugin-"):
        folder = ROOT / "plugins" / name.removeprefix("engine-plugin-")
        return name == "engine-plugin-acme" or (folder.is_dir() and _has_extras(folder, extras))
    return f"| {name}" in (text := (DOCS / "dependencies.md").read_text(encoding="utf-8")) or f", {name}" in text


def _has_extras(folder: Path, extras: str) -> bool:
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return not extras or set(extras.split(",")) <= set(project.get("optional-dependencies", {}))
