"""A file appears when it is complete: whoever reads it meanwhile sees the one before, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.files import complete_file


def test_a_file_appears_at_the_end_and_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with complete_file(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(KeyboardInterrupt):
        _write_and_be_interrupted(path)
    assert list(tmp_path.iterdir()) == []
    path.mkdir()
    with pytest.raises(IsADirectoryError), complete_file(path) as file:
        file.write(b"all")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError), complete_file(tmp_path / "nowhere" / "file"):
        pass


def _write_and_be_interrupted(path: Path) -> None:
    with complete_file(path) as file:
        file.write(b"a part")
        raise KeyboardInterrupt


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    """A report to /dev/null by a user who may do anything must not make a file of the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"), complete_file(pipe):
        pytest.fail("opened")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]
