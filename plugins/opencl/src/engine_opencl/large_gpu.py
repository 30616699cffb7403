"""The description of a large GPU, on which the costs of networks are counted without one."""

from __future__ import annotations

from typing import Final

from engine.lowering import known_shapes
from engine.plugin_api import Model
from engine_opencl.compiler import build_plan
from engine_opencl.devices.device import PTX, DeviceFacts
from engine_opencl.plan import LaunchPlan
from engine_opencl.transform import prepare_model

LARGE_GPU: Final = DeviceFacts(
    name="a large GPU", driver="simulated", kind="gpu", shares_memory=False, alignment=512, max_work_group=1024,
    local_bytes=48 << 10, largest_buffer=32 << 30, memory=128 << 30, compute_units=132,
    max_work_items=(1024, 1024, 64), argument_bytes=32764, has_fp64=True, matrix_unit=PTX,
)  # fmt: skip
"""As NVIDIA's driver describes an H200."""


def planned(model: Model, precision: str = "f32") -> LaunchPlan:
    """The plan that the GPU would get for a model whose lengths are known, with values stored in `precision`."""
    prepared = prepare_model(model, LARGE_GPU, precision)
    return build_plan(prepared.at(known_shapes(prepared.graph)), LARGE_GPU)
