"""The steps that bring a tensor from one layout to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import UnsupportedError
from engine.native import pack
from engine_cpu.layout import Layout

Array = np.ndarray[Any, np.dtype[Any]]

_KERNELS: Final[dict[tuple[Layout, Layout], str]] = {
    (Layout.PLAIN, Layout.BLOCKED): "to_blocked_f32",
    (Layout.BLOCKED, Layout.PLAIN): "from_blocked_f32",
}


def reorder_kernel(source: Layout, target: Layout) -> str:
    """The kernel that converts between two layouts."""
    kernel = _KERNELS.get((source, target))
    if kernel is None:
        raise UnsupportedError(f"no kernel reorders from {source.value} to {target.value}")
    return kernel


def reorder_attributes(kernel: str, shape: Sequence[int]) -> dict[str, int]:
    """The attributes of a reorder of a map [N, C, ...]."""
    return {"batch": shape[0], "channels": shape[1], "pixels": math.prod(shape[2:])}


def reordered_array(array: Array, layout: Layout, isa: str) -> Array:
    """A constant in another layout."""
    kernel = reorder_kernel(Layout.PLAIN, layout)
    source = np.ascontiguousarray(array, np.float32)
    return pack(kernel, [source], reorder_attributes(kernel, array.shape), isa=isa)
