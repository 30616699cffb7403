"""Sharing device memory between values by separate buffers.

Parts of one large buffer would waste less, but are not safe: NVIDIA's driver (580.159) crashes the process when parts
that kernels have used are released, and a launch that uses parts that overlap takes the host 18 us instead of 7.5.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine_opencl.plan import Buffer


def slots_of(buffers: Iterable[Buffer]) -> tuple[dict[Buffer, int], list[int]]:
    """The slot of each buffer, and the bytes of each slot. Buffers whose times overlap have different slots.

    A buffer takes, of the slots that are free, the smallest that is large enough, or otherwise the largest, which
    grows.
    """
    slots: dict[Buffer, int] = {}
    sizes: list[int] = []
    last: list[int] = []
    """The last time at which each slot is used."""
    for buffer in sorted(buffers, key=lambda each: (each.first, -each.byte_size)):
        free = [slot for slot, time in enumerate(last) if time < buffer.first]
        enough = [slot for slot in free if sizes[slot] >= buffer.byte_size]
        if enough:
            slot = min(enough, key=sizes.__getitem__)
        elif free:
            slot = max(free, key=sizes.__getitem__)
            sizes[slot] = buffer.byte_size
        else:
            slot = len(sizes)
            sizes.append(buffer.byte_size)
            last.append(-1)
        slots[buffer], last[slot] = slot, buffer.last
    return slots, sizes
