"""The folder of compiled programs: bounded, shared by processes, and never in the way.

If this fails, the user's disk fills up, or a damaged file or another process ends an application.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_opencl.binaries import BinaryCache

KEYS = [f"{number:064x}" for number in range(12)]
BODY = bytes(1000)
FILE_BYTES = 1000 + len(b"engine-opencl-2\n") + 32


def used_in_this_order(folder: Path, keys: list[str]) -> None:
    """Simulates a second between uses: file times may have no finer resolution."""
    for age, key in enumerate(reversed(keys), 10):
        os.utime(folder / f"{key}.2.program", (time.time() - age, time.time() - age))


def kept(folder: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in folder.glob("*.program")}


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path, 8 * FILE_BYTES)
    for key in KEYS[:8]:
        cache.put(key, BODY)
    assert kept(tmp_path) == set(KEYS[:8])
    used_in_this_order(tmp_path, KEYS[:8])
    assert cache.get(KEYS[0]) == BODY
    cache.put(KEYS[8], BODY)
    assert kept(tmp_path) == {KEYS[0], *KEYS[4:9]}
    assert cache.get(KEYS[1]) is None
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 6 * FILE_BYTES


def test_a_program_of_another_key_is_none(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    cache.put(KEYS[0], BODY)
    (tmp_path / f"{KEYS[0]}.2.program").rename(tmp_path / f"{KEYS[1]}.2.program")
    assert cache.get(KEYS[1]) is None


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(bytes(5000))
    cache = BinaryCache(tmp_path, 2 * FILE_BYTES)
    for key in KEYS:
        cache.put(key, BODY)
    assert (tmp_path / "notes.txt").exists()
    assert 1 <= len(kept(tmp_path)) <= 2


def test_what_was_never_completed_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, new = (tmp_path / f".{KEYS[0]}.2.program.{pid}.ab.tmp" for pid in (1, 2))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000, time.time() - 90_000))
    BinaryCache(tmp_path).put(KEYS[1], BODY)
    assert not old.exists()
    assert new.exists()


def test_many_that_put_and_get_at_once(tmp_path: Path) -> None:
    """Like processes: each has its own cache object for the folder."""

    def use(number: int) -> None:
        cache = BinaryCache(tmp_path, 3 * FILE_BYTES)
        for step in range(30):
            cache.put(KEYS[(number + step) % len(KEYS)], BODY)
            assert cache.get(KEYS[(number * 5 + step) % len(KEYS)]) in (None, BODY)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, range(6)))
    BinaryCache(tmp_path, 3 * FILE_BYTES).put(KEYS[0], BODY)
    assert 1 <= len(kept(tmp_path)) <= 3


@pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")
def test_programs_that_another_user_can_change_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "new" / "folder"
    cache = BinaryCache(folder)
    cache.put(KEYS[0], BODY)
    (file,) = folder.iterdir()
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder, file)] == [0o700, 0o700, 0o600]
    for path, mode in ((folder.parent, 0o777), (folder, 0o757), (file, 0o606)):
        before = path.stat().st_mode
        path.chmod(mode)
        caplog.clear()
        assert cache.get(KEYS[0]) is None
        assert f"{path} can be written by every user" in caplog.text
        assert BinaryCache(folder, is_shared=True).get(KEYS[0]) == BODY
        path.chmod(before)
    folder.chmod(0o777)
    cache.put(KEYS[1], BODY)
    assert list(folder.iterdir()) == [file]


def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    cache.put(KEYS[0], BODY)
    tmp_path.chmod(0o500)
    try:
        assert cache.get(KEYS[0]) == BODY
    finally:
        tmp_path.chmod(0o700)


def test_a_full_folder_is_not_read_for_each_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scanning thousands of files would cost more than compilation."""
    looks = []
    scandir = os.scandir

    def counted(folder: Path) -> Any:
        looks.append(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    cache = BinaryCache(tmp_path, 800 * FILE_BYTES)
    for number in range(400):
        cache.put(f"{number}", BODY)
    assert 1 <= len(looks) <= 8
