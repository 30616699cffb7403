"""Whether another user of this machine could change a file or folder, and folders that no other user can change.

The rule is OpenSSH's StrictModes, for every folder, symbolic link and file on the way to a path, links followed: it
belongs to this process's user or to root, and neither its group nor others may write it. Three cases are allowed that
OpenSSH refuses: on the way, a folder with the sticky bit, such as /tmp, whose entries only their owners can replace
(the entry itself is also checked); the group of the user that has the user's name and no other members, as Debian
creates it; and a link in such a folder if it belongs to the user or root. An access control list that lets others write
shows in the bits of the group, so it is refused.

Only POSIX systems have these bits. Elsewhere nothing is checked, and folders are created with the system's defaults.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600
IS_CHECKED: Final = os.name == "posix"
"""Whether this system has owners and bits of permission."""
_MAX_LINKS: Final = 40


def exposure(path: str | os.PathLike[str]) -> str | None:
    """Why another user could change or replace `path`, as a sentence that names the folder or file; None if none can.

    A path that does not exist yet is as exposed as the folders that exist on the way to it. Raises `OSError` if a
    folder cannot be searched, `ValueError` for a path with a null byte.
    """
    if not IS_CHECKED:
        return None
    for step, status, is_end in _steps(os.path.abspath(path)):
        if (why := _exposed(step, status, is_end)) is not None:
            return why
    return None


def secret_exposure(path: str | os.PathLike[str]) -> str | None:
    """Like `exposure`, for a file that others must not read either; its group may, if the file is root's."""
    why = exposure(path)
    if why is not None or not IS_CHECKED:
        return why
    status = os.stat(path)
    is_granted = _is_own_group(status.st_gid) or (status.st_uid == 0 and os.geteuid() != 0)
    if status.st_mode & stat.S_IROTH or (status.st_mode & stat.S_IRGRP and not is_granted):
        return f"{os.fspath(path)} can be read by others (mode {stat.S_IMODE(status.st_mode):04o}); use chmod 600"
    return None


def make_private_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder, and those above it, for the user alone (mode 0700); one that exists stays as it is.

    Raises `OSError`, `FileExistsError` if something else has the name.
    """
    folder = Path(path)
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        try:
            os.mkdir(each, PRIVATE_FOLDER)
        except FileExistsError:  # by another process; whether the folder is usable is checked like any other's
            if not each.is_dir():
                raise
    if not os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))


def _steps(path: str) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Every folder and link on the way to an absolute path, up to the first missing one, and whether it is the end."""
    here, links = "/", 0
    rest = _names(path)
    yield here, os.lstat(here), not rest
    while rest:
        name = rest.pop()
        if name == "..":  # of a link's target: `here` contains no links, so its parent is what the system takes
            here = os.path.dirname(here)
            continue
        step = os.path.join(here, name)
        try:
            status = os.lstat(step)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield step, status, not rest
        if not stat.S_ISLNK(status.st_mode):
            here = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(step)
        here = "/" if target.startswith("/") else here
        rest += _names(target)


def _names(path: str) -> list[str]:
    """The names in a path, last first."""
    return [name for name in path.split("/")[::-1] if name not in ("", ".")]


def _exposed(step: str, status: os.stat_result, is_end: bool) -> str | None:
    if status.st_uid not in (0, os.geteuid()):
        return f"{step} belongs to another user (uid {status.st_uid}; this process runs as uid {os.geteuid()})"
    if stat.S_ISLNK(status.st_mode):  # a link's own bits mean nothing; its folder is checked
        return None
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and not is_end:
        return None
    mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
    if status.st_mode & stat.S_IWOTH:
        return f"{step} can be written by every user ({mode}); use chmod o-w"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"{step} can be written by its group (gid {status.st_gid}, {mode}); use chmod g-w"
    return None


def _is_own_group(gid: int) -> bool:
    """Whether a group is the private one of this user: the primary group, of the same name, without other members."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
