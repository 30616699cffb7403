"""Products, convolutions and pools written out with numpy in float64, straight from ONNX's definitions.

Each returns the result and, for each of its elements, the sum of the absolute values of its terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.startup import dataclass
from engine.testing.behaviour.cases import Array
from engine.testing.behaviour.numeric import Reals


@dataclass(frozen=True, slots=True)
class ImageWindow:
    """Attributes of a window over `len(kernel)` axes; `pads` are all begins, then all ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    is_ceil: bool = False

    @classmethod
    def of(cls, kernel: Sequence[int], sizes: Sequence[int], given: dict[str, Any]) -> ImageWindow:
        """From the attributes of a node (Conv-11, MaxPool-12, AveragePool-19) on an image of `sizes`."""
        ones = (1,) * len(kernel)
        strides, dilations = tuple(given.get("strides", ones)), tuple(given.get("dilations", ones))
        pads = tuple(given.get("pads", (0,) * (2 * len(kernel))))
        auto = given.get("auto_pad", "NOTSET")
        if auto.startswith("SAME"):
            begins, ends = [], []
            for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
                total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
                begins.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
                ends.append(total - begins[-1])
            pads = (*begins, *ends)
        return cls(tuple(kernel), strides, pads, dilations, bool(given.get("ceil_mode", 0)))

    def outputs(self, sizes: Sequence[int]) -> list[int]:
        """The spatial lengths of the result for inputs of lengths `sizes`."""
        found = []
        for axis, n in enumerate(sizes):
            before, after = self.pads[axis], self.pads[axis + len(self.kernel)]
            stride, reach = self.strides[axis], (self.kernel[axis] - 1) * self.dilations[axis] + 1
            room = n + before + after - reach
            length = (-(-room // stride) if self.is_ceil else room // stride) + 1
            # A last window that would begin in the padding at the end is left out.
            found.append(length - 1 if self.is_ceil and (length - 1) * stride >= n + before else length)
        return found

    def places(self, position: Sequence[int]) -> list[tuple[int, ...]]:
        """The indices into the image, outside of it too, of the window at a position of the result."""
        axes = [
            [o * s - self.pads[axis] + k * d for k in range(self.kernel[axis])]
            for axis, (o, s, d) in enumerate(zip(position, self.strides, self.dilations, strict=True))
        ]
        return list(itertools.product(*axes))


def gemm(a: Array, b: Array, c: Array | None, **given: Any) -> tuple[Reals, Reals]:
    """alpha * A' * B' + beta * C (Gemm-13)."""
    alpha, beta = given.get("alpha", 1.0), given.get("beta", 1.0)
    left, right = (
        (matrix.T if given.get(name) else matrix).astype(np.float64) for name, matrix in (("transA", a), ("transB", b))
    )
    value, size = alpha * (left @ right), abs(alpha) * (np.abs(left) @ np.abs(right))
    if c is not None:
        value, size = value + beta * c.astype(np.float64), size + np.abs(beta * c.astype(np.float64))
    return value, size


def convolve(x: Array, w: Array, bias: Array | None, group: int = 1, **given: Any) -> tuple[Reals, Reals]:
    """Conv-11 of x [N, C, ...] with w [M, C/group, ...]."""
    sizes, maps = x.shape[2:], w.shape[0]
    window = ImageWindow.of(w.shape[2:], sizes, given)
    lengths = window.outputs(sizes)
    value, size = np.zeros((2, x.shape[0], maps, *lengths))
    channels, weights = w.shape[1], w.astype(np.float64).reshape(group, maps // group, w.shape[1], -1)
    for position in np.ndindex(*lengths):
        # [N, C, places]: what the window sees, zeros where it is outside of the image.
        patch = np.stack(
            [_pixel(x, p) if _is_inside(p, sizes) else np.zeros(x.shape[:2]) for p in window.places(position)], axis=2
        ).astype(np.float64)
        seen = patch.reshape(len(x), group, channels, -1)
        at = (slice(None), slice(None), *position)
        value[at] = np.einsum("ngck,gmck->ngm", seen, weights).reshape(len(x), maps)
        size[at] = np.einsum("ngck,gmck->ngm", np.abs(seen), np.abs(weights)).reshape(len(x), maps)
    if bias is not None:
        column = bias.astype(np.float64).reshape(-1, *[1] * len(sizes))
        value, size = value + column, size + np.abs(column)
    return value, size


def pool(x: Array, kernel: Sequence[int], is_mean: bool, **given: Any) -> tuple[Reals, Reals]:
    """MaxPool-12 and AveragePool-19; with `count_include_pad`, padding counts, but the elements that ceil_mode adds do
    not.
    """
    sizes = x.shape[2:]
    window = ImageWindow.of(kernel, sizes, given)
    lengths = window.outputs(sizes)
    value, size = np.zeros((2, *x.shape[:2], *lengths))
    ends = [n + window.pads[len(sizes) + axis] for axis, n in enumerate(sizes)]
    for position in np.ndindex(*lengths):
        places = window.places(position)
        found = np.stack([_pixel(x, p) for p in places if _is_inside(p, sizes)]).astype(np.float64)
        count = len(found)
        if given.get("count_include_pad", 0):
            count = sum(all(i < end for i, end in zip(place, ends, strict=True)) for place in places)
        at = (slice(None), slice(None), *position)
        value[at] = found.sum(axis=0) / count if is_mean else found.max(axis=0)
        size[at] = np.abs(found).sum(axis=0) / count if is_mean else np.abs(value[at])
    return value, size


def _pixel(x: Array, place: Sequence[int]) -> Array:
    """All channels [N, C] at a place of an image."""
    at: tuple[Any, ...] = (slice(None), slice(None), *place)
    return np.asarray(x[at])


def _is_inside(place: Sequence[int], sizes: Sequence[int]) -> bool:
    return all(0 <= i < n for i, n in zip(place, sizes, strict=True))
