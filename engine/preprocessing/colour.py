"""Colours: the order of channels, grey, and video's luma and chroma (ITU-R BT.601, limited range)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from engine import ops
from engine.errors import PreprocessingError
from engine.ir import Constant, Node, Output, f32
from engine.ops.tensors import Array
from engine.preprocessing.geometry import check_choice
from engine.preprocessing.step import Step
from engine.preprocessing.tensor import Tensor, numbers, part, sliced
from engine.startup import dataclass

CHANNELS: Final = {"GREY": 1, "RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4}
"""The colours whose channels are one axis."""
PLANES: Final = {
    "NV12": ("",),
    "I420": ("",),
    "NV12_TWO_PLANES": ("/y", "/uv"),
    "I420_THREE_PLANES": ("/y", "/u", "/v"),
}
"""The colours with luma of full and chroma of half height and width: the suffixes of the names of their inputs."""
CHROMA: Final = ("/uv", "/u", "/v")
"""The planes of half height and width."""
PLANE_CHANNELS: Final = {"": 1, "/y": 1, "/uv": 2, "/u": 1, "/v": 1}

_GREY: Final = {"R": 0.299, "G": 0.587, "B": 0.114}
"""The weights of luma in BT.601."""


@dataclass(frozen=True, slots=True)
class ToColour(Step):
    """Converts the colours of images, as `InputSteps.to_colour` describes."""

    name = "to_colour"
    colour: str

    def __post_init__(self) -> None:
        check_choice("colours", self.colour, tuple(CHANNELS))

    def apply(self, x: Tensor) -> Tensor:
        if not x.colour:
            raise PreprocessingError(f'the colours of {x} are unknown; give them: input(name, colour="BGR")')
        if x.colour == self.colour:
            return x
        if x.colour in PLANES:
            return _from_video(x, self.colour)
        if x.length("C") != CHANNELS[x.colour]:
            raise PreprocessingError(f"{x.colour} has {CHANNELS[x.colour]} channels, got {x}")
        if self.colour == "GREY":
            weights = np.array([[_GREY.get(letter, 0.0) for letter in x.colour]])
            return replace(_mixed(x, weights, np.zeros(1)), colour="GREY")
        if x.colour == "GREY" and self.colour not in ("RGB", "BGR"):
            raise PreprocessingError(f"cannot convert {x.colour} to {self.colour}; only to RGB or BGR")
        missing = set(self.colour) - set(x.colour) if x.colour != "GREY" else set()
        if missing:
            raise PreprocessingError(f"cannot convert {x.colour} to {self.colour}: it has no {min(missing)}")
        order = [0, 0, 0] if x.colour == "GREY" else [x.colour.index(letter) for letter in self.colour]
        return replace(x.with_value(ops.Gather(x.value, numbers(*order), axis=x.axis("C"))), colour=self.colour)


def _mixed(x: Tensor, weights: Array, offsets: Array) -> Tensor:
    """Channels that are sums of the channels, and numbers: weights [new, old], offsets [new].

    One product for each channel: a convolution of so few would be computed on tiles of many, mostly empty.
    """
    x = x.as_real()
    axis, dtype = x.axis("C"), x.element_type.numpy
    shape = [-1] + [1] * (len(x.layout) - 1 - axis)
    total: Output | Node | None = Constant(offsets.astype(dtype).reshape(shape)) if offsets.any() else None
    for index in range(weights.shape[1]):
        plane = sliced(x.value, [axis], [index], [index + 1])
        term = ops.Mul(plane, Constant(weights[:, index].astype(dtype).reshape(shape)))
        total = term if total is None else ops.Add(term, total)
    assert total is not None
    return x.with_value(total)


def _from_video(x: Tensor, colour: str) -> Tensor:
    """RGB or BGR, 0 to 255, of luma and chroma; each chroma sample counts for its two rows and columns."""
    if colour not in ("RGB", "BGR"):
        raise PreprocessingError(f"cannot convert {x.colour} to {colour}; only to RGB or BGR")
    x = x.in_layout("NHWC") if not x.planes else x
    if x.layout != "NHWC":
        raise PreprocessingError(f"{x.colour} needs layout NHWC, got {x}")
    luma, chroma = {"NV12": _nv12, "I420": _i420}.get(x.colour, _of_planes)(x)
    # The smallest luma is 16, the largest 235; chroma is 112 on either side of 128.
    y, c = 255 / 219, 255 / 224
    red, blue = 2 * (1 - _GREY["R"]), 2 * (1 - _GREY["B"])
    rows = {
        "R": [0.0, c * red],
        "G": [-c * blue * _GREY["B"] / _GREY["G"], -c * red * _GREY["R"] / _GREY["G"]],
        "B": [c * blue, 0.0],
    }
    weights = np.array([rows[letter] for letter in colour])
    # The part from chroma is computed at its own height and width, a fourth of the elements.
    tints = _mixed(Tensor(chroma, "NCHW").in_type(f32), weights, -weights @ [128.0, 128.0] - 16 * y)
    exact = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    spread = ops.Resize(tints.value, None, Constant(np.array([1, 1, 2, 2], np.float32)), **exact)
    brightness = ops.Mul(ops.Cast(luma, to=f32.onnx), Constant(np.array(y, np.float32)))
    limits = [Constant(np.array(limit, np.float32)) for limit in (0, 255)]
    bounded = ops.Clip(ops.Add(spread, brightness), *limits)
    return Tensor(bounded.output(0), "NCHW", colour)


def _of_planes(x: Tensor) -> tuple[Output, Output]:
    """Luma [N, 1, H, W] and chroma [N, 2, H / 2, W / 2] of inputs of their own."""
    luma, *chroma = [_channels_first(plane) for plane in (x.value, *x.planes)]
    return luma, chroma[0] if len(chroma) == 1 else ops.Concat(*chroma, axis=1).output(0)


def _nv12(x: Tensor) -> tuple[Output, Output]:
    """The same of one tensor [N, H * 3 / 2, W, 1]: below the luma, rows of pairs of chroma."""
    luma, chroma = _halves(x)
    return _channels_first(luma), _channels_first(ops.Reshape(chroma, numbers(0, 0, -1, 2)).output(0))


def _i420(x: Tensor) -> tuple[Output, Output]:
    """The same of one tensor [N, H * 3 / 2, W, 1]: below the luma one plane of chroma, then the other."""
    luma, chroma = _halves(x)
    halves = ops.Reshape(chroma, numbers(0, 0, 2, -1))  # a row of the tensor is two rows of chroma
    return _channels_first(luma), ops.Reshape(halves, numbers(0, 2, -1, 0)).output(0)


def _channels_first(value: Output) -> Output:
    return ops.Transpose(value, perm=[0, 3, 1, 2]).output(0)


def _halves(x: Tensor) -> tuple[Output, Output]:
    rows, columns = x.length("H"), x.length("W")
    if x.length("C") != 1 or (rows is not None and rows % 3) or (columns is not None and columns % 2):
        raise PreprocessingError(f"{x.colour} is [N, H * 3 / 2, W, 1] of an even height and width, got {x}")
    luma = part(x.computed("H"), 2, 3)
    bottom = x.computed("H")
    return sliced(x.value, [1], [0], [luma]), sliced(x.value, [1], [luma], [bottom])
