"""What all tests share: an OpenCL runtime that pip has installed, which the loader does not look for, is found; the
garbage collector does not go through the tests that were collected."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
from pathlib import Path

# In the order in which they need one another.
_INTEL = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libintelocl.so")


def _use_installed_runtime() -> None:
    """Offer Intel's runtime, which knows every x86 CPU; PoCL's package knows those that its compiler is older than."""
    folder = Path(sys.prefix) / "lib"
    if "OCL_ICD_VENDORS" in os.environ or not all((folder / name).exists() for name in _INTEL):
        return
    for name in _INTEL[:-1]:
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    vendors = Path(tempfile.mkdtemp(prefix="engine-opencl-"))
    (vendors / "intel.icd").write_text(str(folder / _INTEL[-1]) + "\n", encoding="utf-8")
    os.environ["OCL_ICD_VENDORS"] = str(vendors)
    # For the processes that tests start.
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(paths)


_use_installed_runtime()


def pytest_collection_finish() -> None:
    """Keep the collected tests, some twenty thousand, out of every later collection of garbage."""
    gc.collect()
    gc.freeze()
