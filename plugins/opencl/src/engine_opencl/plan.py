"""A plan: the kernel launches and buffers of one inference, with all shapes known."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.ir import Output
from engine.limits import shown_bytes
from engine.startup import dataclass
from engine_opencl.elements import stored_type

WEIGHT: Final = "opencl.weight"
"""The rt_info key of a constant's number, which its copies in plans for other shapes share."""

Argument: TypeAlias = "Buffer | np.generic"
Given: TypeAlias = "Buffer | int | float | np.generic"


@dataclass(eq=False, slots=True)
class Buffer:
    """Device memory. `weight` names the data of a buffer shared by all inferences; others belong to one inference."""

    byte_size: int
    weight: Hashable | None = None
    first: int = -1
    last: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel over a range of work items; with a local size of (), the driver chooses it.

    Attributes:
        source: complete OpenCL C source; equal sources are compiled once.
        node: the operation that it belongs to, for profiles.
        symbol: the name of the kernel's function, if it is another; see `programs.bundles`.
        local_bytes: local memory of a work group.
    """

    source: str
    kernel: str
    arguments: tuple[Argument, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    node: str
    op_type: str
    symbol: str = ""
    local_bytes: int = 0

    @property
    def entry(self) -> str:
        """The name of the kernel's function in the source."""
        return self.symbol or self.kernel


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that a kernel may report: an index of `node` out of range for a dimension of `length`, or if
    `is_length`, a length out of range for sequences of `length` steps.

    Attributes:
        is_signed: whether negative indices count from the end.
    """

    node: str
    op_type: str
    length: int
    is_length: bool = False
    is_signed: bool = True


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launches in order, the buffers of inputs and outputs, and the memory size of one inference.

    Attributes:
        inputs: for each input of the graph, its buffer; None if it is unused.
        outputs: for each output, its buffer or host value: an input's index, or a constant.
        shapes: for each output, its shape; for one in `counts`, the largest that it can have.
        counts: for each output, where kernels write its length along an axis (int64), if an inference counts it.
        count_axes: for each output, this axis; axes before it have length 1.
        weights: the data of the weight buffers, by name.
        faults: the possible faults, in the order of the numbers (int64) of `fault_buffer`: 0 for none,
            otherwise the index out of range, plus 1 if it is not negative.
        programs: the compiled programs of the launches, by source, once built; the plan keeps them alive.
    """

    launches: tuple[Launch, ...]
    inputs: tuple[Buffer | None, ...]
    outputs: tuple[Buffer | int | NDArray[Any], ...]
    shapes: tuple[tuple[int, ...], ...]
    counts: tuple[Buffer | None, ...]
    count_axes: tuple[int, ...]
    arena_bytes: int
    weights: dict[Hashable, Callable[[], NDArray[Any]]] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    fault_buffer: Buffer | None = None
    programs: dict[str, Any] = field(default_factory=dict)

    @property
    def fetched(self) -> dict[Buffer, None]:
        """The buffers that the host reads after an inference, in order."""
        return dict.fromkeys(each for each in (*self.outputs, *self.counts) if isinstance(each, Buffer))

    @property
    def values(self) -> set[Buffer]:
        """The buffers of one inference: those in the arena."""
        arguments = [each for launch in self.launches for each in launch.arguments]
        others = (*self.inputs, *self.outputs, *self.counts)
        return {b for b in (*arguments, *others) if isinstance(b, Buffer) and b.offset >= 0}

    @property
    def read_weights(self) -> dict[Hashable, Callable[[], NDArray[Any]]]:
        """The data of the weight buffers that launches have as arguments: those that are uploaded."""
        arguments = (each for launch in self.launches for each in launch.arguments)
        names = {each.weight for each in arguments if isinstance(each, Buffer) and each.weight is not None}
        return {name: make for name, make in self.weights.items() if name in names}

    @property
    def moved_bytes(self) -> int:
        """The bytes of the values that launches read or write, each value once per launch; weights are not counted."""
        read = (each for launch in self.launches for each in set(launch.arguments))
        return sum(each.byte_size for each in read if isinstance(each, Buffer) and each.weight is None)

    @property
    def local_memory(self) -> tuple[int, str]:
        """The most local memory of a work group, in bytes, and the kernel that needs it; (0, "") if none does."""
        needed = ((launch.local_bytes, launch.kernel) for launch in self.launches if launch.local_bytes)
        return max(needed, default=(0, ""))

    def summary(self) -> str:
        """The cost of an inference, for the log."""
        local, kernel = self.local_memory
        return (
            f"{len(self.launches)} launches, which read and write {shown_bytes(self.moved_bytes)} of values, and need "
            f"{f'{local} bytes of local memory (`{kernel}`)' if local else 'no local memory'}"
        )

    @property
    def live_bytes(self) -> tuple[int, ...]:
        """For each launch, the bytes of the buffers in the arena that are in use during it."""
        buffers = {b for launch in self.launches for b in launch.arguments if isinstance(b, Buffer) and b.offset >= 0}
        changes = [0] * (len(self.launches) + 1)
        for buffer in buffers:
            changes[max(buffer.first, 0)] += buffer.byte_size
            changes[min(buffer.last, len(self.launches) - 1) + 1] -= buffer.byte_size
        return tuple(accumulate(changes))[: len(self.launches)]


def byte_size(value: Output) -> int:
    """The bytes of a value on the device, where some types are stored in other ones."""
    return value.shape.size() * stored_type(value).itemsize
