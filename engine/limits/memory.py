"""The memory of this process, and the check of a value's size before it is allocated."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Final

from engine.errors import OutOfMemoryError
from engine.startup import dataclass

LARGE_BYTES: Final = 64 << 20
"""Values below this size are not compared with the available memory: reading that takes longer than computing them."""
_RESERVE: Final = 32 << 20
"""The memory that a growing value must leave to the rest of the process."""
_UNLIMITED: Final = 1 << 62


def check_bytes(nbytes: int, what: object, limit: int = 0) -> None:
    """Raise `OutOfMemoryError`, naming `what`, if its result of `nbytes` is larger than `limit` or does not fit.

    A limit of 0 means no limit. Values of `LARGE_BYTES` or more must fit into the memory that is available now.
    """
    _check(nbytes, what, limit, available_memory)


def check_planned(nbytes: int, what: object, limit: int = 0) -> None:
    """Like `check_bytes`, for a result that is allocated later: it must fit into all memory of the machine."""
    _check(nbytes, what, limit, total_memory)


def _check(nbytes: int, what: object, limit: int, memory: Callable[[], int]) -> None:
    if limit and nbytes > limit:
        raise OutOfMemoryError(
            f"{what}: its result takes {shown_bytes(nbytes)}, more than the {shown_bytes(limit)} of MAX_TENSOR_BYTES; "
            "use smaller inputs, or raise the limit"
        )
    if nbytes >= LARGE_BYTES and nbytes > (there_is := memory()):
        raise OutOfMemoryError(
            f"{what}: its result takes {shown_bytes(nbytes)}, but the memory has {shown_bytes(there_is)}; "
            "use smaller inputs, or a machine with more memory"
        )


def check_growth(what: object, wanted: int = 0) -> None:
    """Raise `OutOfMemoryError`, naming `what`, if `wanted` bytes and a small reserve are not available."""
    available = available_memory()
    if wanted + _RESERVE > available:
        raise OutOfMemoryError(
            f"{what}: {shown_bytes(available)} of memory are available, and it needs {shown_bytes(wanted + _RESERVE)}; "
            "use smaller inputs, and check the lengths of the model's loops and sequences"
        )


def available_memory() -> int:
    """Bytes that this process can allocate now: the smallest of the machine's, its control group's and its own limit.

    Takes 0.1 ms. Where the system does not report it, the result is 2**62.
    """
    machine = _meminfo("MemAvailable:") + _meminfo("SwapFree:", 0)
    return max(0, min(machine, _address_space_available(), *map(_group_available, _groups())))


def total_memory() -> int:
    """Bytes of memory that this process could ever allocate."""
    return min(_meminfo("MemTotal:"), _address_space(), *(_read_number(each.limit) for each in _groups()))


def _meminfo(key: str, otherwise: int = _UNLIMITED) -> int:
    return _number_in("/proc/meminfo", key, otherwise >> 10) << 10


def _number_in(path: str, key: str, otherwise: int) -> int:
    """The number after `key` in a file of lines."""
    try:
        with open(path, encoding="ascii") as file:
            return next((int(words[1]) for line in file if (words := line.split())[0] == key), otherwise)
    except (OSError, ValueError, IndexError):
        return otherwise


@dataclass(frozen=True, slots=True)
class _Group:
    """The files of a control group's memory, and the line of its file cache, which is freed when memory is needed."""

    limit: str
    used: str
    statistics: str
    cache: str


@cache
def _groups() -> tuple[_Group, ...]:
    """The control groups that may limit this process: of version 2, of its own and of its container, and version 1."""
    root, version_1 = "/sys/fs/cgroup", "/sys/fs/cgroup/memory"
    folders = dict.fromkeys([root, root + _own_group()])
    new = [_Group(f"{f}/memory.max", f"{f}/memory.current", f"{f}/memory.stat", "file") for f in folders]
    old = _Group(
        f"{version_1}/memory.limit_in_bytes", f"{version_1}/memory.usage_in_bytes", f"{version_1}/memory.stat", "cache"
    )
    return tuple(group for group in (*new, old) if os.path.exists(group.limit))


def _own_group() -> str:
    try:
        with open("/proc/self/cgroup", encoding="ascii") as file:
            return next((line[3:].strip().rstrip("/") for line in file if line.startswith("0::")), "")
    except (OSError, ValueError):
        return ""


def _group_available(group: _Group) -> int:
    limit = _read_number(group.limit)
    if limit >= _UNLIMITED:
        return limit
    return limit - max(0, _read_number(group.used, 0) - _number_in(group.statistics, group.cache, 0))


def _address_space_available() -> int:
    limit = _address_space()
    if limit == _UNLIMITED:
        return limit
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return limit - int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return limit


def _address_space() -> int:
    try:
        import resource
    except ImportError:  # not on Windows
        return _UNLIMITED
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _read_number(path: str, otherwise: int = _UNLIMITED) -> int:
    """The number in a file; `otherwise` if there is none: "max" in a file of a control group means no limit."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return otherwise


def shown_bytes(nbytes: int) -> str:
    """A size as text for messages: in bytes below 1 MiB, then in MiB, from 10 GiB on in GiB."""
    if nbytes < 1 << 20:
        return f"{nbytes} bytes"
    return f"{nbytes / (1 << 20):.0f} MiB" if nbytes < 10 << 30 else f"{nbytes / (1 << 30):.0f} GiB"
