"""Inputs from images, and from raw bytes: values that a file gives only with the type of the input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError, UnsupportedError
from engine.ir import TensorType, ValueType
from engine.startup import dataclass

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
RAW_SUFFIXES: Final = (".bin", ".raw")
_CHANNELS: Final = {1: "L", 3: "RGB", 4: "RGBA"}
_MAX_PIXELS: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class PixelScale:
    """How pixels become floating-point numbers: `(pixel / 255 - mean) / std`, for each channel or all."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


def image_value(content: bytes, where: str, value_type: ValueType, scale: PixelScale | None = None) -> NDArray[Any]:
    """An image as a tensor of a type: [.., C, H, W] or [.., H, W, C] with 1, 3 or 4 channels, or [H, W].

    It is resized (bilinear) to the height and width that the type fixes. Integers are 0..255, floating-point numbers as
    `scale` says. Needs the package Pillow. Raises `InputError`, and `UnsupportedError` without the package.
    """
    axes = _axes(where, value_type)
    assert isinstance(value_type, TensorType)
    shape = list(value_type.shape)
    image = _decoded(content, where, axes.mode)
    height, width = (
        shape[axis].get_length() if shape[axis].is_static else own
        for axis, own in ((axes.height, image.height), (axes.height + 1, image.width))
    )
    if (width, height) != image.size:
        if not width or not height or width * height > _MAX_PIXELS:
            raise InputError(f"{where}: an image cannot be resized to {height} x {width}")
        image = image.resize((width, height), _pillow().Resampling.BILINEAR)
    pixels = np.asarray(image)
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    dtype = value_type.element_type.numpy
    if dtype.kind not in "iub":
        pixels = _scaled(pixels, scale or PixelScale(), where)
    if axes.is_channel_first:
        pixels = np.moveaxis(pixels, -1, 0)
    elif not axes.has_channels:
        pixels = pixels[..., 0]
    batch = len(shape) - pixels.ndim
    return np.ascontiguousarray(pixels.reshape((1,) * batch + pixels.shape)).astype(dtype)


@dataclass(frozen=True, slots=True)
class _Axes:
    height: int
    mode: str
    is_channel_first: bool
    has_channels: bool


def _axes(where: str, value_type: ValueType) -> _Axes:
    """Where height and width, and the channels, of an input are; batches must be 1."""
    problem = f"{where}: an image does not fit an input of {value_type}; expected [1,C,H,W] or [1,H,W,C], C 1, 3 or 4"
    if not isinstance(value_type, TensorType) or value_type.shape.rank.is_dynamic:
        raise InputError(problem)
    lengths = [dim.get_length() if dim.is_static else None for dim in value_type.shape]
    rank = len(lengths)
    if rank == 2:
        return _Axes(0, "L", is_channel_first=False, has_channels=False)
    if rank not in (3, 4) or (rank == 4 and lengths[0] not in (1, None)):
        raise InputError(problem)
    if (first := lengths[-3]) in _CHANNELS:
        return _Axes(rank - 2, _CHANNELS[first], is_channel_first=True, has_channels=True)
    if (last := lengths[-1]) in _CHANNELS:
        return _Axes(rank - 3, _CHANNELS[last], is_channel_first=False, has_channels=True)
    raise InputError(problem)


def _scaled(pixels: NDArray[Any], scale: PixelScale, where: str) -> NDArray[Any]:
    channels = pixels.shape[-1]
    for what, values in (("mean", scale.mean), ("std", scale.std)):
        if len(values) not in (1, channels):
            raise InputError(
                f"{where}: {len(values)} values of {what} for {channels} channels; expected 1 or {channels}"
            )
    if 0 in scale.std:
        raise InputError(f"{where}: a std of 0 for pixels; expected another number")
    mean, std = (np.array(values, np.float32) for values in (scale.mean, scale.std))
    return (pixels.astype(np.float32) / np.float32(255) - mean) / std


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as e:
        raise UnsupportedError("reading images needs the package Pillow: pip install engine-sdk[images]") from e
    return Image


def _decoded(content: bytes, where: str, mode: str) -> Any:
    module = _pillow()
    try:
        image = module.open(BytesIO(content))
        if image.width * image.height > _MAX_PIXELS:
            raise InputError(f"{where}: an image of {image.height} x {image.width} pixels is too large")
        return image.convert(mode)
    except InputError:
        raise
    except Exception as e:  # decoders raise many kinds for damaged files
        raise InputError(f"{where}: it cannot be read as an image: {e}") from e


def raw_value(content: bytes, where: str, value_type: ValueType) -> NDArray[Any]:
    """The elements of a tensor as they are in memory, in row-major order and this machine's byte order.

    One unknown length of the shape follows from the number of bytes. Raises `InputError`.
    """
    if not isinstance(value_type, TensorType) or value_type.shape.rank.is_dynamic:
        raise InputError(f"{where}: raw bytes do not tell the shape that an input of {value_type} needs; use .npy")
    dtype = value_type.element_type.numpy
    if dtype.kind in "OTSU":
        raise InputError(f"{where}: strings cannot be read from raw bytes; use .npy or .pb")
    lengths = [dim.get_length() if dim.is_static else None for dim in value_type.shape]
    shape = _resolved(lengths, len(content), dtype.itemsize)
    if shape is None:
        raise InputError(
            f"{where}: it has {len(content)} bytes, which do not make {value_type} of {dtype.itemsize} each"
        )
    return np.frombuffer(content, dtype).reshape(shape).copy()


def _resolved(lengths: Sequence[int | None], size: int, item: int) -> tuple[int, ...] | None:
    known = math.prod(length for length in lengths if length is not None)
    unknown = sum(length is None for length in lengths)
    if not unknown:
        return tuple(length for length in lengths if length is not None) if known * item == size else None
    if unknown > 1 or not known or size % (known * item):
        return None
    rest = size // (known * item)
    return tuple(rest if length is None else length for length in lengths)
