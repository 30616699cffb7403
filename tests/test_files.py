"""A file appears when it is complete: whoever reads it meanwhile sees the one before, or none.

Measured choices outlive the process, whatever other processes, versions and full disks do.
"""

from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path

import pytest

from engine.files import ChoicesFile, complete_file, position_of, user_cache_folder

LOG = logging.getLogger("engine.test_files")
posix = pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")


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


@posix
def test_a_file_is_for_all_unless_it_is_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for is_private, mode in ((False, 0o644), (True, 0o600)):
            with complete_file(tmp_path / "file", is_private=is_private) as file:
                file.write(b"content")
            assert (tmp_path / "file").stat().st_mode & 0o777 == mode
        with complete_file(tmp_path / "usual") as file:
            file.write(b"content")
        assert (tmp_path / "usual").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


# -- choices that processes share ----------------------------------------------------------------------------


def choices(folder: Path, *key: str) -> ChoicesFile:
    return ChoicesFile(folder, "choices", key or ("device", "1.0"), LOG)


def test_choices_of_two_processes_are_merged(tmp_path: Path) -> None:
    one, other = choices(tmp_path / "new"), choices(tmp_path / "new")
    one.put("both", "of one")
    one.put("first", "a")
    one.save()
    other.put("both", "of the other")
    other.put("second", "b")
    other.save()
    read = choices(tmp_path / "new")
    assert [read.get(name) for name in ("both", "first", "second", "none")] == ["of the other", "a", "b", None]
    assert choices(tmp_path / "new", "device", "2.0").get("first") is None


def test_what_is_not_changed_is_not_written(tmp_path: Path) -> None:
    choices(tmp_path / "new").save()
    assert not (tmp_path / "new").exists()
    written = choices(tmp_path)
    written.put("problem", "a")
    written.save()
    written.path.unlink()
    written.save()
    assert not written.path.exists()


def test_the_newest_choices_are_kept_where_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChoicesFile, "_MAX_ENTRIES", 3)
    for name in ("a", "b", "c", "d"):
        one = choices(tmp_path)
        one.put(name, "x")
        one.save()
    assert [name for name in ("a", "b", "c", "d") if choices(tmp_path).get(name)] == ["b", "c", "d"]


def test_the_format_of_stored_choices_stays_readable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that an earlier release wrote; one of another format or key is left to be replaced, and says so."""
    stored = {"format": 1, "key": ["device", "1.0"], "choices": {"problem": "fast"}}
    path = choices(tmp_path).path
    path.write_text(json.dumps(stored))
    assert choices(tmp_path).get("problem") == "fast"
    assert not caplog.records
    for change in ({"format": 2}, {"key": ["device", "2.0"]}):
        path.write_text(json.dumps(stored | change))
        assert choices(tmp_path).get("problem") is None
        assert "is for another device or version; tuning again" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"format": 1}', "[" * 100_000, b"\xff"])
def test_a_damaged_file_of_choices_is_logged_and_replaced(
    text: str | bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = choices(tmp_path).path
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    damaged = choices(tmp_path)
    assert "cannot be read" in caplog.records[-1].getMessage()
    damaged.put("problem", "a")
    damaged.save()
    assert choices(tmp_path).get("problem") == "a"


@pytest.mark.parametrize("content", [[], "text", None, 3])
def test_stored_choices_that_are_no_table_are_none(content: object, tmp_path: Path) -> None:
    path = choices(tmp_path).path
    path.write_text(json.dumps({"format": 1, "key": ["device", "1.0"], "choices": content}))
    assert choices(tmp_path).get("problem") is None


def test_choices_that_cannot_be_written_do_not_fail_the_compilation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    one = choices(tmp_path / "file")
    one.put("problem", "a")
    one.save()
    assert "cannot be written" in caplog.records[-1].getMessage()
    assert one.get("problem") == "a"


@posix
def test_choices_in_a_folder_that_others_can_change_count_only_where_that_is_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    for name in ("first", "second"):
        allowed = ChoicesFile(folder, "choices", ("device", "1.0"), LOG, is_shared=True)
        allowed.put(name, "a")
        allowed.save()
    allowed = ChoicesFile(folder, "choices", ("device", "1.0"), LOG, is_shared=True)
    assert [allowed.get(name) for name in ("first", "second")] == ["a", "a"]
    assert not caplog.records
    assert choices(folder).get("first") is None
    assert "can be written by every user" in caplog.text


def test_caches_are_in_the_folder_that_the_system_names(monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(Path("/home") / "user")
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: Path(home))
    assert user_cache_folder("engine") == Path(home) / ".cache" / "engine"
    for name in ("LOCALAPPDATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, f"/caches/{name}")
        assert user_cache_folder("engine") == Path(f"/caches/{name}") / "engine"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    one = choices(user_cache_folder("engine"))
    one.put("problem", "a")
    one.save()
    assert "cannot be written" in caplog.text


def test_a_stream_that_tells_no_position_is_at_its_beginning() -> None:
    stream = io.BytesIO(b"content")
    stream.seek(3)
    assert position_of(stream) == 3
    stream.close()
    assert position_of(stream) == 0
    assert position_of(object()) == 0
    stream.tell = lambda: None  # type: ignore[method-assign,assignment,return-value]
    assert position_of(stream) == 0
