"""Reports go to a pipe or a device as they are, which are not replaced by a file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        ("diff MODEL -d TEMPLATE -d TEMPLATE --html PIPE", "</html>"),
        ("benchmark MODEL -d TEMPLATE --count 1 -n 0 --html PIPE", "</html>"),
        ("benchmark MODEL -d TEMPLATE --count 1 -n 0 -o PIPE", "}"),
        ("inspect MODEL --html PIPE", "</html>"),
    ],
)
def test_a_pipe_gets_the_report(
    words: str, ending: str, engine: Callable[..., Any], files: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    places = {"MODEL": files / "basic.onnx", "PIPE": pipe}
    done = engine(*(places.get(word, word) for word in words.split()))
    assert done.code == 0, done.err
    assert pipe.is_fifo()
    reader.join(60)
    assert found[0].rstrip().endswith(ending)
    assert list(tmp_path.iterdir()) == [pipe]
