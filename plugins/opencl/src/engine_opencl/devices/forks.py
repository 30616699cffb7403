"""Objects of OpenCL drivers in forked processes: they are never released there.

A child that was forked from a process that used OpenCL does not have the driver's threads. NVIDIA's driver (580.159)
crashes it when it releases anything, as the garbage collector does at some point.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_is_child = False


def keep_after_fork(owner: Any) -> None:
    """In children forked from now on, `owner`, and all that it refers to then, lives until the child ends."""
    _owners.add(owner)


def keep_if_forked(held: Any) -> None:
    """Let an object live until this process ends, if that was forked after an owner was made."""
    if _is_child:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def _keep() -> None:
    global _is_child
    owners = list(_owners)
    _is_child = _is_child or bool(owners)
    for owner in owners:
        keep_if_forked(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep)
