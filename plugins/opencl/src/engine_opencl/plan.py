"""A plan: what the device runs for one inference, with all shapes known, as a list of kernel launches over buffers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.ir import Output
from engine_opencl.elements import stored_type

WEIGHT: Final = "opencl.weight"
"""The rt_info key of a constant's number, which its copies in plans for other shapes share."""

Argument: TypeAlias = "Buffer | np.generic"
Given: TypeAlias = "Buffer | int | float | np.generic"


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory of the device. `weight` names what it holds for all inferences; others are an inference's own."""

    byte_size: int
    weight: Hashable | None = None
    first: int = -1
    last: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel over a range of work items; a local size of () leaves that to the driver.

    Attributes:
        source: OpenCL C, complete; equal sources are compiled once.
        node: the operation that it belongs to, for profiles.
    """

    source: str
    kernel: str
    arguments: tuple[Argument, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    node: str
    op_type: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What a kernel may report: an index of `node` that is out of range for a dimension of `length`."""

    node: str
    op_type: str
    length: int


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launches in order, where inputs go, where outputs are, and the size of the memory of one inference.

    Attributes:
        inputs: for each input of the graph its buffer; None where nothing reads it.
        outputs: for each output its buffer, or the host's value: an input's index, or a constant.
        weights: what the weight buffers hold, by name.
        faults: what kernels may report, in the order of the numbers (int64) of `fault_buffer`: 0 for none, else the
            index that was out of range, plus 1 where it is not negative.
        programs: the compiled ones of the launches, by source, once they are built; the plan keeps them alive.
    """

    launches: tuple[Launch, ...]
    inputs: tuple[Buffer | None, ...]
    outputs: tuple[Buffer | int | NDArray[Any], ...]
    shapes: tuple[tuple[int, ...], ...]
    arena_bytes: int
    weights: dict[Hashable, Callable[[], NDArray[Any]]] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    fault_buffer: Buffer | None = None
    programs: dict[str, Any] = field(default_factory=dict)


def byte_size(value: Output) -> int:
    """The bytes of a value on the device."""
    return value.shape.size() * stored_type(value).itemsize
