"""The memory of one inference on a device, and the transfers of inputs and outputs.

`new_arena` selects by `OpenclDevice.memory_kind`:

- `shared`: fine-grained shared virtual memory; the host reads and writes it in place (CPUs, some integrated GPUs);
- `mapped`: host memory that the host may access only while it is mapped (other integrated GPUs);
- `staged`: device memory; transfers go through page-locked host memory.
"""

from __future__ import annotations

from typing import Any, Final

from engine_opencl.devices.device import OpenclDevice
from engine_opencl.memory.arena import Arena
from engine_opencl.memory.mapped import MappedArena
from engine_opencl.memory.shared import SharedArena
from engine_opencl.memory.staged import StagedArena
from engine_opencl.plan import LaunchPlan

__all__ = ["Arena", "MappedArena", "SharedArena", "StagedArena", "new_arena", "planned_bytes"]


def new_arena(device: OpenclDevice, plan: LaunchPlan, queue: Any, *, profiling: bool) -> Arena:
    """Memory for one inference at a time, whose kernels run on `queue`.

    Raises `OutOfMemoryError` with the size, and errors of pyopencl.
    """
    return _KINDS[device.memory_kind](device, plan, queue, profiling=profiling)


def planned_bytes(device: OpenclDevice, plan: LaunchPlan) -> tuple[int, int]:
    """The bytes that an arena for a plan has on the device, and of staging memory on the host."""
    return _KINDS[device.memory_kind].planned_bytes(plan, device.facts.alignment)


_KINDS: Final[dict[str, type[Arena]]] = {"shared": SharedArena, "mapped": MappedArena, "staged": StagedArena}
