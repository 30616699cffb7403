"""The native core in a process with several Python interpreters: an import must fail in the others, not hang."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.errors import NativeCoreError
from engine.native.extension import _MissingCore

IN_SECOND_INTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
{before}
code = '''
try:
    import engine._core
except Exception as error:
    print(type(error).__name__, error, flush=True)
'''
failed = getattr(interpreters, "exec", interpreters.run_string)(interpreters.create(), code)
print("main", failed)
import engine.native
print(engine.native.default_isa())
"""


def _run(before: str) -> list[str]:
    script = IN_SECOND_INTERPRETER.format(before=before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_import_in_a_second_interpreter_says_what_to_do() -> None:
    """It waited for its own lock for ever; before or after the main interpreter's import."""
    for before in ("", "import engine.native"):
        error, main, isa = _run(before)
        assert error.startswith("ImportError engine._core: this is not the main interpreter"), error
        assert error.endswith("use threads or processes")
        assert main == "main None"
        assert isa, "the main interpreter has the core all the same"


def test_a_core_that_refuses_is_not_called_missing() -> None:
    """Installing it again would change nothing."""
    with pytest.raises(NativeCoreError, match=r"^engine\._core: not here; use threads$"):
        _MissingCore(ImportError("engine._core: not here; use threads")).cores()
