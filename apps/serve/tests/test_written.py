"""Answers of HTTP beside KServe's own text of them. If this fails, clients read other numbers than the model gave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_bytes_are_those_of_kserve() -> None:
    """But FP16 in JSON, which neither writes, is named in the refusal."""
    script = Path(__file__).with_name("texts_of_kserve.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    expected = "400 InputError: output `float16` is FP16, which JSON does not carry; ask for it as a binary tensor\n"
    assert done.stdout == expected, done.stderr
