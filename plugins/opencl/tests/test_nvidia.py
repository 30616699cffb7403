"""On a machine with a GPU of NVIDIA, the plugin says what to install or write if OpenCL does not find the GPU.

If this fails, models run on the CPU of such a machine, or not at all, and nothing says why.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from engine_opencl.devices import nvidia
from engine_opencl.devices.nvidia import missing_runtime

OTHERS = [SimpleNamespace(name="Portable Computing Language")]


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device node of a GPU."""
    monkeypatch.setattr(nvidia, "DEVICES", tmp_path)
    node = tmp_path / "nvidia0"
    node.touch()
    return node


@pytest.mark.parametrize(("found", "remedy"), [(None, "is not installed: install it"), ("so", "/vendors/nvidia.icd")])
def test_what_is_missing_is_named(gpu: Path, monkeypatch: pytest.MonkeyPatch, found: str | None, remedy: str) -> None:
    monkeypatch.setattr(nvidia, "find_library", lambda name: found)
    assert remedy in missing_runtime(OTHERS)
    assert "libnvidia-opencl.so.1" in missing_runtime(OTHERS)


def test_nothing_is_missing_without_a_gpu_or_with_its_runtime(gpu: Path) -> None:
    assert not missing_runtime([*OTHERS, SimpleNamespace(name="NVIDIA CUDA")])
    gpu.unlink()
    assert not missing_runtime(OTHERS)
