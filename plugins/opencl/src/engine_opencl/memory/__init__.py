"""The memory of one inference on a device, and how inputs and outputs get there and back.

`new_arena` chooses by `OpenclDevice.memory_kind`:

- `shared`: fine-grained shared virtual memory; the host reads and writes it in place (CPUs, some integrated GPUs);
- `mapped`: the host's memory too, which the host may touch only while it is mapped (other integrated GPUs);
- `staged`: memory of its own; what comes and goes passes through page-locked memory of the host.
"""

from __future__ import annotations

from engine_opencl.devices.device import OpenclDevice
from engine_opencl.memory.arena import Arena
from engine_opencl.memory.mapped import MappedArena
from engine_opencl.memory.shared import SharedArena
from engine_opencl.memory.staged import StagedArena
from engine_opencl.plan import LaunchPlan

__all__ = ["Arena", "MappedArena", "SharedArena", "StagedArena", "new_arena"]


def new_arena(device: OpenclDevice, plan: LaunchPlan, *, profiling: bool) -> Arena:
    """Memory for one inference at a time. Raises `OutOfMemoryError` with the size, and errors of pyopencl."""
    kinds: dict[str, type[Arena]] = {"shared": SharedArena, "mapped": MappedArena, "staged": StagedArena}
    return kinds[device.memory_kind](device, plan, profiling=profiling)
