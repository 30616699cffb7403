"""A copy of the checkout, in which faults are made and tests are run, so that the checkout itself may be edited."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.mutation.rooms import ROOT, Room

_PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist")
_OPTIONS: Final = ("-o", "addopts=--import-mode=importlib --strict-markers", "-m", "not slow and not peers")
# The default tests. What `repeated` marks depends on the tests that are collected, so it chooses from whole files only.
_DEFAULT: Final = ("-m", "not slow and not peers and not repeated")
_NOT_COPIED: Final = shutil.ignore_patterns(".git", "build", "*.egg-info", "__pycache__", ".*_cache")
# Exit statuses of pytest: all passed; a test is not found, since a fault changed its name; none was chosen.
_PASSED, _USAGE, _NONE = 0, 4, 5


@dataclass(slots=True)
class Tree:
    """A copy below `root`, and what is known of a room's tests."""

    root: Path
    room: Room
    timeout: float
    seconds: dict[str, float] = field(default_factory=dict)
    executed: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Copy the checkout, and note which of the room's tests execute which lines; RuntimeError if none ran."""
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=_NOT_COPIED, dirs_exist_ok=True)
        noted = self.root / f"executed-{self._state()}.json"
        if not noted.exists():
            files = os.pathsep.join(str(path) for path in self._files())
            # Compiled modules are kept, of the tests too: most of a fault's time would go into compiling them again.
            environment = {
                "ENGINE_MUTATED_FILES": files, "ENGINE_EXECUTED": str(noted), "PYTHONDONTWRITEBYTECODE": ""
            }  # fmt: skip
            options = ("-p", "tests.mutation.executed", "--maxfail=1000", *_DEFAULT, *self.room.tests)
            status = self._pytest(options, environment, timeout=None)
            if not noted.exists():
                raise RuntimeError(f"pytest ended with status {status} before any of the tests: {self.room.tests}")
        found = json.loads(noted.read_text(encoding="utf-8"))
        self.seconds = found["seconds"]
        self.executed = {
            path: {int(line): tests for line, tests in lines.items()} for path, lines in found["executed"].items()
        }

    def tests_of(self, path: Path, line: int) -> list[str]:
        """The tests that execute a line of a module, the fastest first, as many as run in half of the time limit.

        Of a line that runs when the module is imported, first those that execute anything of the module, then the
        others of the room: what a decorator registers is read by tests that need not enter the module.
        """
        here = self.executed.get(str(self.root / path.relative_to(ROOT)), {})
        first, last = _statement(path, line)
        tests = {test for each in range(first, last + 1) for test in here.get(each, ())}
        order = self._fastest(tests)
        if not tests and any(each in here for each in range(first, last + 1)):
            entering = {test for each in here.values() for test in each}
            order = self._fastest(entering) + self._fastest(self.seconds.keys() - entering)
        chosen, left = [], self.timeout / 2
        for test in order:
            left -= self.seconds.get(test, 0.0)
            if left < 0:
                break
            chosen.append(test)
        return chosen

    def notices(self, path: Path, code: str, tests: Sequence[str]) -> bool:
        """Whether one of some tests fails with other code in a module."""
        target = self.root / path.relative_to(ROOT)
        named = self.root / "chosen.txt"
        named.write_text("\n".join(tests), encoding="utf-8")
        try:
            target.write_text(code, encoding="utf-8")
            result = self._pytest((f"@{named}",), {}, self.timeout)
            if result in (_USAGE, _NONE):
                result = self._pytest(
                    (*_DEFAULT, *sorted({test.partition("::")[0] for test in tests})), {}, self.timeout
                )
        finally:
            shutil.copy2(path, target)
        return result != _PASSED

    def _fastest(self, tests: Collection[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds.get(test, 0.0), test))

    def _state(self) -> str:
        """The files on which the recorded lines and tests depend."""
        tests = [ROOT / name for name in self.room.tests]
        found = [*self.room.files(), *(path for each in tests for path in ([each], each.rglob("*.py"))[each.is_dir()])]
        return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(found))).hexdigest()[:16]

    def _files(self) -> list[Path]:
        return [self.root / path.relative_to(ROOT) for path in self.room.files()]

    def _pytest(self, arguments: Sequence[str], environment: dict[str, str], timeout: float | None) -> int | None:
        """The exit status, or None after the time limit."""
        folders = [self.root, *sorted(self.root.glob("plugins/*/src")), *sorted(self.root.glob("apps/*/src"))]
        # Two faults within one second have equal time stamps, so a compiled module of the first would be used for the
        # second.
        settings = {
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPYCACHEPREFIX": "",  # conftest.py would choose a folder, and have it written
            **environment,
        }
        try:
            return subprocess.run(
                [*_PYTEST, *_OPTIONS, *arguments],
                cwd=self.root,
                env=os.environ | settings,
                stdout=subprocess.DEVNULL if timeout else sys.stderr,
                stderr=subprocess.DEVNULL if timeout else None,
                timeout=timeout,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def _statement(path: Path, line: int) -> tuple[int, int]:
    """The lines of the innermost statement around a line; of a compound one, those before its body."""
    best = (line, line)
    size = float("inf")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.stmt, ast.match_case, ast.ExceptHandler)):
            body = getattr(node, "body", None)
            first = getattr(node, "lineno", None) or node.pattern.lineno  # type: ignore[union-attr]
            last = body[0].lineno - 1 if body else node.end_lineno  # type: ignore[union-attr]
            last = max(first, last)
            if first <= line <= last and last - first < size:
                best, size = (first, last), last - first
    return best
