"""The OpenCL runtime of NVIDIA's driver, which containers often lack, or do not register."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes.util import find_library
from pathlib import Path
from typing import Any, Final

NVIDIA_PLATFORM: Final = "NVIDIA CUDA"
_LIBRARY: Final = "libnvidia-opencl.so.1"
DEVICES: Final = Path("/dev")
_VENDORS: Final = "/etc/OpenCL/vendors"


def missing_runtime(platforms: Iterable[Any]) -> str:
    """Why no GPU of NVIDIA is among the OpenCL platforms, and the remedy; "" if there is none, or if it is found."""
    if any(platform.name == NVIDIA_PLATFORM for platform in platforms) or not any(DEVICES.glob("nvidia[0-9]*")):
        return ""
    if find_library("nvidia-opencl") is None:
        return (
            f"this machine has a GPU of NVIDIA, but the driver's OpenCL runtime {_LIBRARY} is not installed: install "
            "it in the version of the driver (package libnvidia-compute on Ubuntu, nvidia-opencl-icd on Debian), or "
            "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    return (
        "this machine has a GPU of NVIDIA and the driver's OpenCL runtime, but the OpenCL loader does not find it: "
        f"write the line {_LIBRARY} to {_VENDORS}/nvidia.icd, or to a file nvidia.icd in the folder that "
        "OCL_ICD_VENDORS names"
    )
