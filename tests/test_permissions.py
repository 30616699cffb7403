"""Who could change a file: files that the engine reads back must have been written by this user or by root.

If this fails, another user of the machine replaces what this process loads; or the user's own folders are refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.files import CacheFolder, permissions
from engine.files.permissions import exposure, make_private_folder, secret_exposure

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")
STRANGER = 65_432


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A folder that only this user can change, whatever the umask."""
    before = os.umask(0o022)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "file").write_text("content")
    yield tmp_path / "own"
    os.umask(before)


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a stranger the owner of `path`. Without root's rights, only `lstat` is made to report this owner."""
    if os.geteuid() == 0:
        os.lchown(path, STRANGER, -1)
        return
    lstat = os.lstat

    def of_stranger(step: Any) -> Any:
        status = lstat(step)
        if os.fspath(step) != str(path):
            return status
        return SimpleNamespace(st_uid=STRANGER, st_gid=status.st_gid, st_mode=status.st_mode)

    monkeypatch.setattr(os, "lstat", of_stranger)


def test_what_only_the_user_can_change(own: Path) -> None:
    for path in (own, own / "file", own / "missing", own / "missing" / "too", own / "file" / "below"):
        assert exposure(path) is None
    (own / "file").chmod(0o444)
    assert exposure(own / "file") is None, "others may read it"


@pytest.mark.parametrize("mode", [0o757, 0o772, 0o777])
@pytest.mark.parametrize("name", ["", "file"])
def test_what_others_can_write(own: Path, name: str, mode: int) -> None:
    (own / name).chmod(mode)
    assert f"{own / name} can be written by" in str(exposure(own / "file"))
    assert (exposure(own / "missing") is None) is (name == "file")


def test_a_group_that_may_write(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any group but the user's private one, which has no other members."""
    import grp
    import pwd

    own.chmod(0o770)
    gid = own.stat().st_gid
    group = SimpleNamespace(gr_name="me", gr_mem=[])
    user = SimpleNamespace(pw_name="me", pw_gid=gid)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)
    assert exposure(own) is None
    for wrong in ({"gr_name": "staff"}, {"gr_mem": ["me", "other"]}):
        monkeypatch.setattr(grp, "getgrgid", lambda gid, wrong=wrong: SimpleNamespace(**{**vars(group), **wrong}))
        assert f"can be written by its group (gid {gid}" in str(exposure(own))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)
    user.pw_gid = gid + 1
    assert "by its group" in str(exposure(own))

    def unknown(uid: int) -> Any:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert "by its group" in str(exposure(own))


@pytest.mark.parametrize("name", ["", "file"])
def test_what_others_own(own: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(own / name, monkeypatch)
    assert f"{own / name} belongs to another user (uid {STRANGER}" in str(exposure(own / "file"))


def test_a_folder_in_one_where_all_may_create_is_the_owners(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in /tmp: only the owner of an entry can replace it. Such a folder is not a cache itself."""
    own.chmod(0o1777)
    (own / "mine").mkdir(0o700)
    assert exposure(own / "mine") is None
    assert exposure(own / "mine" / "missing") is None
    assert exposure(own / "missing") is None
    assert "can be written by every user (mode 1777)" in str(exposure(own))
    own.chmod(0o777)
    assert f"{own} can be written" in str(exposure(own / "mine"))
    own.chmod(0o1777)
    give_away(own / "mine", monkeypatch)
    assert "belongs to another user" in str(exposure(own / "mine"))


def test_links_are_followed_and_every_folder_on_the_way_counts(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_, link = own.parent / "open", own.parent / "link"
    open_.mkdir()
    (open_ / "inside").mkdir()
    (open_ / "back").symlink_to("../own")
    link.symlink_to("open/back")
    assert exposure(link / "file") is None
    open_.chmod(0o777)
    assert exposure(own / "file") is None
    assert f"{open_} can be written" in str(exposure(link / "file")), "where it leads can be changed on the way"
    open_.chmod(0o1777)
    assert exposure(link / "file") is None
    (own / "out").symlink_to(open_ / "inside")
    assert exposure(own / "out") is None
    (open_ / "inside").chmod(0o777)
    assert f"{open_ / 'inside'} can be written" in str(exposure(own / "out"))
    give_away(open_ / "back", monkeypatch)
    assert f"{open_ / 'back'} belongs to another user" in str(exposure(link / "file")), "a stranger's link in /tmp"


def test_a_circle_of_links_is_an_error_of_the_system(own: Path) -> None:
    (own / "a").symlink_to("b")
    (own / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        exposure(own / "a")
    assert "symbolic links" in str(CacheFolder(own / "a").refusal())


@pytest.mark.parametrize(("mode", "is_exposed"), [(0o600, False), (0o400, False), (0o604, True), (0o602, True)])
def test_a_secret_that_others_can_read(own: Path, mode: int, is_exposed: bool) -> None:
    (own / "file").chmod(mode)
    assert (secret_exposure(own / "file") is not None) is is_exposed


def test_a_secret_that_the_group_can_read(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service gets a key from root by its group; a user's key is the user's."""
    (own / "file").chmod(0o640)
    monkeypatch.setattr(permissions, "_is_own_group", lambda gid: False)
    assert "can be read by others (mode 0640)" in str(secret_exposure(own / "file"))
    monkeypatch.setattr(permissions, "_is_own_group", lambda gid: True)
    assert secret_exposure(own / "file") is None


def test_folders_are_created_for_the_user_alone(own: Path) -> None:
    os.umask(0)
    make_private_folder(own / "a" / "b")
    assert [(own / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]
    (own / "a").chmod(0o755)
    make_private_folder(own / "a" / "b")
    assert (own / "a").stat().st_mode & 0o777 == 0o755, "what exists stays"
    with pytest.raises(FileExistsError):
        make_private_folder(own / "file")
    with pytest.raises(NotADirectoryError):
        make_private_folder(own / "file" / "below")


def test_a_cache_folder_is_created_or_refused(own: Path) -> None:
    os.umask(0)
    with CacheFolder(own / "a" / "b").file("name") as file:
        file.write(b"content")
    assert (own / "a" / "b" / "name").stat().st_mode & 0o777 == 0o600
    own.chmod(0o777)
    for folder in (own / "a" / "b", own / "new"):
        with pytest.raises(PermissionError, match="ALLOW_SHARED_CACHE"):
            CacheFolder(folder).make()
    assert not (own / "new").exists()
    shared = CacheFolder(own / "new", is_shared=True)
    with shared.file("name") as file:
        file.write(b"content")
    assert shared.refusal("name") is None
    assert (own / "new" / "name").stat().st_mode & 0o777 == 0o666, "as the umask says, for others to use"


def test_other_systems_have_no_such_permissions(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own.chmod(0o777)
    monkeypatch.setattr(permissions, "IS_CHECKED", False)
    monkeypatch.delattr(os, "geteuid")
    assert exposure(own) is None
    assert secret_exposure(own / "file") is None
    with CacheFolder(own / "new").file("name") as file:
        file.write(b"content")
