"""The constant factor of a matrix product, in the forms in which kernels read it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from engine.ir import Constant, Output
from engine.native import Attribute, Packing
from engine.startup import dataclass
from engine_cpu.layout import static_shape
from engine_cpu.weights import WeightStore

Array = np.ndarray[Any, np.dtype[Any]]

_ELEMENTS: Final = ("f32", "bf16", "f16")
MIN_NARROW: Final = 1 << 17
"""The elements from which a B of 16 bits is worth widening: more than fit into a cache beside other weights."""
MIN_COLUMNS: Final = 16
"""The columns from which it is multiplied by tiles, which widen it."""
_CHECKED: Final = 1 << 16
"""Elements that are checked at once: the first ones already show that most matrices of f32 need f32."""


@dataclass(frozen=True, slots=True)
class ConstantFactor:
    """A constant B[..., k, n] of a product, or [..., n, k] if `transposed`; its forms are the same for any A."""

    weights: Output
    n: int
    k: int
    transposed: bool
    store: WeightStore

    def pack(self, precision: str) -> None:
        """Store the form that products with one matrix B read, in a network of this precision."""
        recipe, make = self.in_bf16() if precision == "bf16" else self.widened(self.element())
        self.store.get(self.store.key([self.weights], recipe), [self.weights], make)

    def element(self) -> str:
        """The type in which B is stored: bf16 or f16 if that is exact, as in models stored in these types.

        Products widen them where they are used. Products of few rows, whose time is spent reading B, therefore take
        half as long; for many rows, widening takes a small part. Small matrices stay f32: they are read from a cache.
        """
        if self.n * self.k < MIN_NARROW or self.n < MIN_COLUMNS:
            return "f32"
        # Stored, since an imported network lacks the plain data.
        key = self.store.key([self.weights], "narrowest exact type")
        found = self.store.get(key, [self.weights], lambda: np.array([_narrowest(self._data())], np.int32))
        return _ELEMENTS[int(found.reshape(-1).view(np.int32)[0])]

    def widened(self, element: str) -> tuple[str, Callable[[], Packing]]:
        """The recipe and the packing of B for `gemm_f32`, stored as `element`."""
        matrices = math.prod(static_shape(self.weights)[:-2])
        attributes: dict[str, Attribute] = {**self._attributes(), "matrices": matrices, "b_element": element}
        recipe = f"gemm_{element} {self.n}x{self.k}x{matrices}{self._suffix}"
        if self.store.is_repeatable:
            attributes["repeatable"], recipe = 1, f"{recipe} repeatable"
        return recipe, lambda: Packing("pack_gemm_f32", [self._in_f32()], attributes, isa=self.store.isa)

    def in_bf16(self) -> tuple[str, Callable[[], Packing]]:
        """The recipe and the packing of B, one matrix, for `gemm_bf16`."""
        recipe = f"gemm_bf16 {self.n}x{self.k}{self._suffix}"
        return recipe, lambda: Packing("pack_gemm_bf16", [self._in_f32()], self._attributes(), isa=self.store.isa)

    @property
    def _suffix(self) -> str:
        return " transposed" if self.transposed else ""

    def _attributes(self) -> dict[str, Attribute]:
        return {"n": self.n, "k": self.k, "transposed": int(self.transposed)}

    def _data(self) -> Array:
        assert isinstance(self.weights.node, Constant)
        return self.store.data(self.weights.node)

    def _in_f32(self) -> Array:
        return np.ascontiguousarray(self._data(), np.float32)


def _narrowest(values: Array) -> int:
    """The index in `_ELEMENTS` of the narrowest type that holds all values."""
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    fits = [_is_bf16, _is_f16]
    for start in range(0, flat.size, _CHECKED):
        part = flat[start : start + _CHECKED]
        fits = [fit for fit in fits if np.isfinite(part).all() and fit(part)]
        if not fits:
            return 0
    return 1 + [_is_bf16, _is_f16].index(fits[0])


def _is_bf16(values: Array) -> bool:
    return not (values.view(np.uint32) & 0xFFFF).any()


def _is_f16(values: Array) -> bool:
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float16).astype(np.float32) == values).all())
