"""Element types: every tensor element type of ONNX, with its numpy dtype.

The dtypes that numpy lacks come from ml_dtypes, which is imported when one of them is needed: networks of the usual
types run without it.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any, Final

import numpy as np

from engine.errors import ModelError, UnsupportedError


class ElementType:
    """The type of a tensor's elements; one shared instance per type, compared by identity.

    Attributes:
        name: the short name, as in texts and blobs: `f32`.
        onnx: the value of `TensorProto.DataType`.
        numpy: the numpy dtype of one element in memory; strings are `object`. Raises `UnsupportedError` if it is one of
            ml_dtypes, which is not installed.
        bits: bits of one element in ONNX's packed storage; 0 for strings and undefined.
    """

    __slots__ = ("_kind", "_small", "bits", "name", "numpy", "onnx")

    name: str
    onnx: int
    numpy: np.dtype[Any]
    bits: int

    def __init__(self, name: str, onnx: int, numpy: Any, bits: int, kind: str) -> None:
        """`numpy` is a type of numpy, or the name of one of ml_dtypes."""
        self.name = name
        self.onnx = onnx
        self.bits = bits
        self._kind = kind
        self._small = numpy if isinstance(numpy, str) else ""
        if not self._small:
            self.numpy = np.dtype(numpy)

    def __getattr__(self, name: str) -> Any:
        """The dtype of a type that numpy lacks, when it is first needed."""
        if name != "numpy":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.numpy = np.dtype(getattr(_ml_dtypes(f"element type {self.name}"), self._small))
        return self.numpy

    @property
    def is_real(self) -> bool:
        """True for floating-point types of any width."""
        return self._kind == "float"

    @property
    def is_integral(self) -> bool:
        """True for signed and unsigned integers, but not for bool."""
        return self._kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        """Whether the type has negative values."""
        return self._kind in ("int", "float", "complex")

    @property
    def is_complex(self) -> bool:
        """Whether the elements are complex numbers, such as c64."""
        return self._kind == "complex"

    @property
    def is_packed(self) -> bool:
        """Whether ONNX stores several elements in one byte."""
        return 0 < self.bits < 8

    @property
    def finfo(self) -> Any:
        """Limits and format of a floating-point type, as `numpy.finfo` has them."""
        if not self._small:
            return np.finfo(self.numpy)
        return _ml_dtypes(f"element type {self.name}").finfo(self.numpy)

    def byte_size(self, count: int) -> int:
        """Bytes that `count` elements take in ONNX's raw storage; 0 for strings."""
        return (self.bits * count + 7) // 8

    @staticmethod
    def from_onnx(value: int) -> ElementType:
        """The element type of a `TensorProto.DataType` value. Raises `ModelError` for an unknown one."""
        try:
            return _BY_ONNX[value]
        except KeyError:
            raise ModelError(f"element type {value} is unknown; ONNX types 0..{max(_BY_ONNX)} are known") from None

    @staticmethod
    def from_numpy(dtype: Any) -> ElementType:
        """The element type of a numpy dtype; all string dtypes map to `string`. Raises `ModelError`."""
        try:
            dtype = _dtype(dtype)
        except TypeError as e:
            raise ModelError(f"{dtype!r} is not a numpy dtype: {e}") from e
        found = _BY_NUMPY.get(dtype)
        if found is not None:
            return found
        if dtype.kind in "USTO":
            return string
        native = _BY_NUMPY.get(dtype.newbyteorder("="))
        if native is not None:
            return native
        if "ml_dtypes" in sys.modules and dtype in _small_types():
            return _small_types()[dtype]
        raise ModelError(f"numpy dtype {dtype} has no ONNX element type; known: {', '.join(_BY_NAME)}")

    @staticmethod
    def parse(name: str) -> ElementType:
        """The element type called `name`. Raises `ModelError` listing the known names."""
        try:
            return _BY_NAME[name]
        except (KeyError, TypeError):
            raise ModelError(f"element type {name!r} is unknown; known: {', '.join(_BY_NAME)}") from None

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return ElementType.parse, (self.name,)


undefined: Final = ElementType("undefined", 0, object, 0, "none")
f32: Final = ElementType("f32", 1, np.float32, 32, "float")
u8: Final = ElementType("u8", 2, np.uint8, 8, "uint")
i8: Final = ElementType("i8", 3, np.int8, 8, "int")
u16: Final = ElementType("u16", 4, np.uint16, 16, "uint")
i16: Final = ElementType("i16", 5, np.int16, 16, "int")
i32: Final = ElementType("i32", 6, np.int32, 32, "int")
i64: Final = ElementType("i64", 7, np.int64, 64, "int")
string: Final = ElementType("string", 8, object, 0, "string")
boolean: Final = ElementType("bool", 9, np.bool_, 8, "bool")
f16: Final = ElementType("f16", 10, np.float16, 16, "float")
f64: Final = ElementType("f64", 11, np.float64, 64, "float")
u32: Final = ElementType("u32", 12, np.uint32, 32, "uint")
u64: Final = ElementType("u64", 13, np.uint64, 64, "uint")
c64: Final = ElementType("c64", 14, np.complex64, 64, "complex")
c128: Final = ElementType("c128", 15, np.complex128, 128, "complex")
bf16: Final = ElementType("bf16", 16, "bfloat16", 16, "float")
f8e4m3fn: Final = ElementType("f8e4m3fn", 17, "float8_e4m3fn", 8, "float")
f8e4m3fnuz: Final = ElementType("f8e4m3fnuz", 18, "float8_e4m3fnuz", 8, "float")
f8e5m2: Final = ElementType("f8e5m2", 19, "float8_e5m2", 8, "float")
f8e5m2fnuz: Final = ElementType("f8e5m2fnuz", 20, "float8_e5m2fnuz", 8, "float")
u4: Final = ElementType("u4", 21, "uint4", 4, "uint")
i4: Final = ElementType("i4", 22, "int4", 4, "int")
f4e2m1: Final = ElementType("f4e2m1", 23, "float4_e2m1fn", 4, "float")
f8e8m0: Final = ElementType("f8e8m0", 24, "float8_e8m0fnu", 8, "float")
u2: Final = ElementType("u2", 25, "uint2", 2, "uint")
i2: Final = ElementType("i2", 26, "int2", 2, "int")
f6e2m3: Final = ElementType("f6e2m3", 27, "float6_e2m3fn", 6, "float")
f6e3m2: Final = ElementType("f6e3m2", 28, "float6_e3m2fn", 6, "float")

ALL: Final[tuple[ElementType, ...]] = (
    undefined, f32, u8, i8, u16, i16, i32, i64, string, boolean, f16, f64, u32, u64, c64, c128, bf16,
    f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, u4, i4, f4e2m1, f8e8m0, u2, i2, f6e2m3, f6e3m2,
)  # fmt: skip

_BY_ONNX: Final = {t.onnx: t for t in ALL}
_BY_NAME: Final = {t.name: t for t in ALL}
_BY_NUMPY: Final = {t.numpy: t for t in ALL if not t._small and t.numpy != np.dtype(object)}


@cache
def _small_types() -> dict[np.dtype[Any], ElementType]:
    """The types whose dtypes come from ml_dtypes."""
    return {t.numpy: t for t in ALL if t._small}


def _dtype(dtype: Any) -> np.dtype[Any]:
    """`dtype` as numpy's. The names that ml_dtypes adds, such as "bfloat16", are known once it is imported."""
    try:
        made: np.dtype[Any] = np.dtype(dtype)
        return made
    except TypeError:
        if not isinstance(dtype, str) or all(t._small != dtype for t in ALL):
            raise
    small: np.dtype[Any] = np.dtype(getattr(_ml_dtypes(f"dtype {dtype!r}"), dtype))
    return small


def _ml_dtypes(what: str) -> ModuleType:
    try:
        import ml_dtypes
    except ImportError as e:
        raise UnsupportedError(f"{what} needs the package ml_dtypes, which cannot be imported ({e}): "
                               "pip install ml_dtypes") from e  # fmt: skip
    return ml_dtypes
