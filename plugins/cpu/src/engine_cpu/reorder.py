"""The steps that convert a tensor from one layout to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import UnsupportedError
from engine.ir.element_type import ElementType, f32
from engine.native import pack
from engine_cpu.layout import Layout, item_size, layout_bytes

Array = np.ndarray[Any, np.dtype[Any]]

_KERNELS: Final[dict[tuple[Layout, Layout], str]] = {
    (Layout.PLAIN, Layout.BLOCKED): "to_blocked_f32",
    (Layout.BLOCKED, Layout.PLAIN): "from_blocked_f32",
    (Layout.PLAIN, Layout.PLAIN_BF16): "convert_f32_bf16",
    (Layout.PLAIN_BF16, Layout.PLAIN): "convert_bf16_f32",
    (Layout.BLOCKED, Layout.BLOCKED_BF16): "convert_f32_bf16",
    (Layout.BLOCKED_BF16, Layout.BLOCKED): "convert_bf16_f32",
    (Layout.PLAIN, Layout.BLOCKED_BF16): "to_blocked_f32_bf16",
    (Layout.BLOCKED_BF16, Layout.PLAIN): "from_blocked_bf16_f32",
    (Layout.PLAIN_BF16, Layout.BLOCKED_BF16): "to_blocked_bf16",
    (Layout.BLOCKED_BF16, Layout.PLAIN_BF16): "from_blocked_bf16",
    (Layout.PLAIN_BF16, Layout.BLOCKED): "to_blocked_bf16_f32",
    (Layout.BLOCKED, Layout.PLAIN_BF16): "from_blocked_f32_bf16",
}


_BYTE_KERNELS: Final[dict[tuple[Layout, Layout], str]] = {
    (Layout.PLAIN, Layout.BLOCKED): "to_blocked_byte",
    (Layout.BLOCKED, Layout.PLAIN): "from_blocked_byte",
}


def reorder_kernel(source: Layout, target: Layout, element_type: ElementType = f32) -> str:
    """The kernel that converts between two layouts."""
    kernels = _BYTE_KERNELS if item_size(element_type) == 1 else _KERNELS
    kernel = kernels.get((source, target))
    if kernel is None:
        raise UnsupportedError(f"no kernel reorders from {source.value} to {target.value}")
    return kernel


def reorder_attributes(source: Layout, target: Layout, shape: Sequence[int]) -> dict[str, int]:
    """The attributes of that kernel; the shape is [N, C, ...] if a layout is blocked."""
    if source.is_blocked == target.is_blocked:
        return {"count": layout_bytes(shape, f32, source) // item_size(f32, source)}
    return {"batch": shape[0], "channels": shape[1], "pixels": math.prod(shape[2:])}


def reordered_array(array: Array, layout: Layout, isa: str) -> Array:
    """A plain array in another layout, by the same kernel that reorders at run time."""
    is_byte = array.dtype.itemsize == 1
    kernel = reorder_kernel(Layout.PLAIN, layout, ElementType.from_numpy(array.dtype) if is_byte else f32)
    source = np.ascontiguousarray(array if is_byte else array.astype(np.float32, copy=False))
    return pack(kernel, [source], reorder_attributes(Layout.PLAIN, layout, array.shape), isa=isa)
