"""Colours: the order of channels, grey, and video's luma and chroma (ITU-R BT.601, limited range)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from engine import ops
from engine.errors import PreprocessingError
from engine.ir import Constant, Output, f32
from engine.ops.tensors import Array
from engine.preprocessing.geometry import check_choice
from engine.preprocessing.step import Step
from engine.preprocessing.tensor import Tensor, numbers, part, sliced, vector

CHANNELS: Final = {"GREY": 1, "RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4}
"""The colours whose channels are one axis."""
PLANES: Final = {
    "NV12": ("",),
    "I420": ("",),
    "NV12_TWO_PLANES": ("/y", "/uv"),
    "I420_THREE_PLANES": ("/y", "/u", "/v"),
}
"""The colours with luma of full and chroma of half height and width: what is appended to the names of their inputs."""
PLANE_CHANNELS: Final = {"": 1, "/y": 1, "/uv": 2, "/u": 1, "/v": 1}

_GREY: Final = {"R": 0.299, "G": 0.587, "B": 0.114}
"""The weights of luma in BT.601."""


@dataclass(frozen=True, slots=True)
class ToColour(Step):
    """Converts colours: see `InputSteps.to_colour`."""

    name = "to_colour"
    colour: str

    def __post_init__(self) -> None:
        check_choice("colours", self.colour, tuple(CHANNELS))

    def apply(self, x: Tensor) -> Tensor:
        """See `Step.apply`."""
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
            raise PreprocessingError(f"cannot make {self.colour} of {x.colour}; RGB and BGR can be")
        missing = set(self.colour) - set(x.colour) if x.colour != "GREY" else set()
        if missing:
            raise PreprocessingError(f"cannot make {self.colour} of {x.colour}, which has no {min(missing)}")
        order = [0, 0, 0] if x.colour == "GREY" else [x.colour.index(letter) for letter in self.colour]
        return replace(x.with_value(ops.Gather(x.value, numbers(*order), axis=x.axis("C"))), colour=self.colour)


def _mixed(x: Tensor, weights: Array, offsets: Array) -> Tensor:
    """Channels that are sums of the channels: weights [new, old], offsets [new]; in the layout N, C, rest."""
    x = x.as_real()
    rest = "".join(letter for letter in x.layout if letter not in "NC")
    x = x.in_layout(f"NC{rest}")
    dtype = x.element_type.numpy
    matrix = Constant(weights.reshape(*weights.shape, *[1] * len(rest)).astype(dtype))
    bias = None if not offsets.any() else Constant(offsets.astype(dtype))
    return x.with_value(ops.Conv(x.value, matrix, bias))


def _from_video(x: Tensor, colour: str) -> Tensor:
    """RGB or BGR, 0 to 255, of luma and chroma; each chroma sample counts for its two rows and columns."""
    if colour not in ("RGB", "BGR"):
        raise PreprocessingError(f"cannot make {colour} of {x.colour}; RGB and BGR can be")
    x = x.in_layout("NHWC") if not x.planes else x
    if x.layout != "NHWC":
        raise PreprocessingError(f"{x.colour} needs layout NHWC, got {x}")
    split = {"NV12": _nv12, "I420": _i420}.get(x.colour)
    planes = [x.value, *x.planes] if split is None else split(x)
    luma, *chroma = [x.with_value(plane).as_real().in_type(f32).value for plane in planes]
    joined = chroma[0] if len(chroma) == 1 else ops.Concat(*chroma, axis=3).output(0)
    factors = Constant(np.array([1, 2, 2, 1], np.float32))
    exact = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    spread = ops.Resize(joined, None, factors, **exact)
    video = Tensor(ops.Concat(luma, spread, axis=3).output(0), "NHWC")
    # The least luma is 16, the greatest 235; chroma is 112 on either side of 128.
    y, c = 255 / 219, 255 / 224
    red, blue = 2 * (1 - _GREY["R"]), 2 * (1 - _GREY["B"])
    rows = {
        "R": [y, 0.0, c * red],
        "G": [y, -c * blue * _GREY["B"] / _GREY["G"], -c * red * _GREY["R"] / _GREY["G"]],
        "B": [y, c * blue, 0.0],
    }
    weights = np.array([rows[letter] for letter in colour])
    mixed = _mixed(video, weights, -weights @ [16.0, 128.0, 128.0])
    limits = [Constant(np.array(limit, np.float32)) for limit in (0, 255)]
    return replace(mixed.with_value(ops.Clip(mixed.value, *limits)), colour=colour)


def _nv12(x: Tensor) -> list[Output]:
    """The planes of one tensor [N, H * 3 / 2, W, 1]: below the luma, rows of pairs of chroma."""
    luma, chroma = _halves(x)
    return [luma, ops.Reshape(chroma, numbers(0, 0, -1, 2)).output(0)]


def _i420(x: Tensor) -> list[Output]:
    """The planes of one tensor [N, H * 3 / 2, W, 1]: below the luma one plane of chroma, then the other."""
    luma, chroma = _halves(x)
    planes = ops.Reshape(chroma, vector([0, 2, -1, part(x.computed("W"), 1, 2)]))
    return [luma, ops.Transpose(planes, perm=[0, 2, 3, 1]).output(0)]


def _halves(x: Tensor) -> tuple[Output, Output]:
    rows, columns = x.length("H"), x.length("W")
    if x.length("C") != 1 or (rows is not None and rows % 3) or (columns is not None and columns % 2):
        raise PreprocessingError(f"{x.colour} is [N, H * 3 / 2, W, 1] of an even height and width, got {x}")
    luma = part(x.computed("H"), 2, 3)
    bottom = x.computed("H")
    return sliced(x.value, [1], [0], [luma]), sliced(x.value, [1], [luma], [bottom])
