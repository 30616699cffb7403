"""Users whose folders cannot be written to: in containers, in services, on full disks.

If this fails, they cannot use OPENCL, or it refuses networks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_opencl import binaries

SCRIPT = """
import numpy as np
from engine import Core, ops
from engine.ir import Model, Parameter, Result, f32
x = Parameter(f32, (64, 64), "x")
model = Model([Result(ops.MatMul(ops.Relu(x), x), "y")], [x])
core = Core()
values = np.eye(64, dtype=np.float32)
for seconds in (120.0, 0.0):
    network = core.compile_model(model, "OPENCL", {"KERNEL_TRIAL_SECONDS": seconds, "COMPILE_EFFORT": "quick"})
    assert (network({"x": values})["y"] == values).all()
"""


def run(home: Path, **more: str) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "PYOPENCL_NO_CACHE")}
    env = {
        **clean,
        "HOME": str(home),
        "USERPROFILE": str(home),
        "LOCALAPPDATA": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    # PoCL without a folder of its own has no device.
    run(tmp_path / "file" / "home", POCL_CACHE_DIR=str(tmp_path / "pocl"))


def test_a_data_base_of_pyopencl_that_cannot_be_written(tmp_path: Path) -> None:
    """pyopencl writes to its database for each kernel signature: to a full disk, or to another user's folder."""
    module = tmp_path / "sitecustomize.py"
    module.write_text(
        "import sqlite3\n"
        "from pytools import persistent_dict\n"
        "def refuse(self, key, value, _skip_if_present=False):\n"
        "    raise sqlite3.OperationalError('attempt to write a readonly database')\n"
        "persistent_dict.WriteOncePersistentDict.store = refuse\n",
        encoding="utf-8",
    )
    run(tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(binaries.Path, "home", nowhere)
    cache = binaries.BinaryCache(binaries.default_folder())
    cache.put("key", b"program")
    assert cache.get("key") is None
