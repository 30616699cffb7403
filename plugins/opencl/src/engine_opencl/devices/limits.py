"""Compares launches of kernels with the limits of the device, since drivers report an excess poorly."""

from __future__ import annotations

import math
from typing import Any

from engine.errors import DeviceError
from engine_opencl.devices.device import OpenclDevice
from engine_opencl.plan import Buffer, Launch


def check_limits(device: OpenclDevice, launch: Launch, kernel: Any) -> None:
    """Raise `DeviceError` if a launch exceeds the limits of the device, or of its compiler for this kernel."""
    import pyopencl as cl

    facts = device.facts
    where = f"OPENCL: kernel `{launch.kernel}` of {launch.op_type} `{launch.node}`"
    items = math.prod(launch.local_size)
    info = cl.kernel_work_group_info
    allowed = kernel.get_work_group_info(info.WORK_GROUP_SIZE, device.handle)
    if items > allowed:
        raise DeviceError(f"{where} uses work groups of {items} items; {facts.name} allows {allowed} for this kernel")
    if any(length > most for length, most in zip(launch.local_size, facts.max_work_items, strict=False)):
        raise DeviceError(
            f"{where} uses work groups of {launch.local_size} items; {facts.name} allows at most "
            f"{facts.max_work_items} along each dimension"
        )
    if math.prod(launch.global_size) >= 1 << facts.address_bits:
        raise DeviceError(
            f"{where} runs over {launch.global_size} items; {facts.name} has {facts.address_bits}-bit sizes"
        )
    local_bytes = kernel.get_work_group_info(info.LOCAL_MEM_SIZE, device.handle)
    if local_bytes > facts.local_bytes:
        raise DeviceError(f"{where} needs {local_bytes} bytes of local memory; {facts.name} has {facts.local_bytes}")
    pointer = facts.address_bits // 8
    argument_bytes = sum(pointer if isinstance(each, Buffer) else each.nbytes for each in launch.arguments)
    if argument_bytes > facts.argument_bytes:
        raise DeviceError(
            f"{where} takes {argument_bytes} bytes of arguments; {facts.name} allows {facts.argument_bytes}; "
            "place the operation on another device with HETERO"
        )
