"""Operands of products and convolutions for CPUs: packed, with vectors of neighbouring columns."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ir import ElementType
from engine.ir.element_type import f32
from engine.startup import dataclass
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source

LANES = 16
"""Columns of a work group, one per item: a vector of the widest CPUs."""

_DEPTH = 64
"""Steps along K that an item packs if neighbouring items are neighbours along the other axis."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """Matrices [LENGTH, K] in a buffer, one for each place of `batch`, by strides in elements."""

    buffer: Buffer
    length: int
    k: int
    step: int
    k_step: int
    batch: tuple[int, ...] = ()
    batch_steps: tuple[int, ...] = ()
    real: ElementType = f32

    @property
    def count(self) -> int:
        """The number of distinct matrices: 1 if all steps of the batch are 0."""
        return math.prod(self.batch) if any(self.batch_steps) else 1

    @property
    def packed_real(self) -> ElementType:
        """The storage type of `packed`: unchanged for constants, the computation type for others."""
        return f32 if self.buffer.weight is None else self.real

    def described(self) -> str:
        """A text of everything that affects the speed of reading them, given K."""
        return f"matrix {self.length} {self.step} {self.k_step} {self.batch_steps}"


def packed(b: LaunchPlanBuilder, matrices: Matrices, width: int) -> Buffer:
    """The matrices as [count][LENGTH / width][K][width]; a constant's matrices are packed once for all inferences."""
    x = matrices
    blocks = -(-x.length // width)
    if x.buffer.weight is not None:
        make = b.weights[x.buffer.weight]
        layout = (x.length, x.k, x.step, x.k_step, x.batch, x.batch_steps)
        return b.weight(("packed", x.buffer.weight, width, layout), lambda: pack_array(make(), matrices, width))
    target = b.temporary(x.count * blocks * x.k * width * 4)
    along_k = x.k_step == 1
    group, items = (LANES, -(-x.k // LANES) * LANES) if along_k else (width, -(-x.k // _DEPTH) * width)
    source = kernel_source(
        "pack",
        x.real,
        LENGTH=x.length, K=x.k, WIDTH=width, BLOCKS=blocks, STEP=x.step, K_STEP=x.k_step, GROUP=group, DEPTH=_DEPTH,
        BATCH=batch_code(x.batch, source=x.batch_steps),
    )  # fmt: skip
    b.launch(source, "pack", [x.buffer, target], (items, blocks, x.count), (group, 1, 1))
    return target


def pack_array(data: NDArray[Any], matrices: Matrices, width: int) -> NDArray[Any]:
    """The result of `packed`, computed on the host."""
    x = matrices
    batch, batch_steps = (x.batch, x.batch_steps) if x.count > 1 else ((), ())
    flat = np.ascontiguousarray(data).reshape(-1)
    steps = tuple(flat.itemsize * step for step in (*batch_steps, x.step, x.k_step))
    view = np.lib.stride_tricks.as_strided(flat, (*batch, x.length, x.k), steps).reshape(x.count, x.length, x.k)
    blocks = -(-x.length // width)
    full = np.zeros((x.count, blocks * width, x.k), flat.dtype)
    full[:, : x.length] = view
    return np.ascontiguousarray(full.reshape(x.count, blocks, width, x.k).transpose(0, 1, 3, 2))


def short_digest(text: str) -> str:
    """A short hash of a text for the key of a site."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def batch_code(batch: Sequence[int], **steps: Sequence[int]) -> str:
    """Statements that add the offset of batch `r` to each named variable."""
    lines = []
    for axis in range(len(batch) - 1, -1, -1):
        if batch[axis] == 1:
            continue
        moves = " ".join(f"{name} += k * {each[axis]}ul;" for name, each in steps.items())
        lines.append(f"{{ const ulong k = r % {batch[axis]}ul; r /= {batch[axis]}ul; {moves} }}")
    return " ".join(lines)
