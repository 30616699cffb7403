"""Builds blocks: what `NetworkBuilder` has, and further forms of exporters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from drawn.choices import Choices
from engine.testing.networks import NetworkBuilder

ACTIVATIONS = (
    "none", "Relu", "Relu", "Clip 0..6", "SiLU", "SiLU", "GELU by erf", "GELU by erf as nodes", "GELU by tanh",
    "HardSwish", "Sigmoid", "LeakyRelu",
)  # fmt: skip
"""The activations that blocks have; frequent ones are repeated."""
_SHAPE_VALUES = 16


class BlockBuilder(NetworkBuilder):
    """A builder with choices; `is_sketch` leaves out the weights, for a model that only tells its costs."""

    def __init__(self, name: str, seed: int, choices: Choices, *, is_sketch: bool = False) -> None:
        super().__init__(name, seed)
        self.choices, self.is_sketch = choices, is_sketch

    def uniform(self, shape: Sequence[int], deviation: float) -> npt.NDArray[Any]:
        """Draw float32 values of mean 0; zeros in a sketch."""
        if self.is_sketch:
            return np.broadcast_to(np.float32(0), tuple(shape))
        return super().uniform(shape, deviation)

    def constant(self, value: npt.ArrayLike) -> str:
        """Add an initializer, and return its name."""
        array = np.asarray(value)
        if not self.is_sketch or array.size <= _SHAPE_VALUES:
            return super().constant(array)
        tensor = onnx.TensorProto(
            name=f"w{len(self._initializers)}", dims=array.shape,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
        )  # fmt: skip
        self._initializers.append(tensor)
        self._types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, array.shape)
        return tensor.name

    # -- convolutions ---------------------------------------------------------------------------------------

    def window(
        self, x: str, channels: int, kernel: Sequence[int], *, stride: int = 1, dilation: int = 1, groups: int = 1,
        pads: Sequence[int] | None = None,
    ) -> str:  # fmt: skip
        """Add a Conv with bias and a window of any sides; by default, the padding keeps the size at a stride of 1."""
        axes, depth = len(kernel), self.shape(x)[1] // groups
        around = [dilation * (side - 1) // 2 for side in kernel]
        return self.add(
            "Conv", x, self.weight(channels, depth, *kernel, fan_in=depth * math.prod(kernel)), self.bias(channels),
            kernel_shape=list(kernel), strides=[stride] * axes, group=groups, dilations=[dilation] * axes,
            pads=list(pads) if pads is not None else around * 2,
        )  # fmt: skip

    def conv_transpose(
        self, x: str, channels: int, kernel: int, stride: int, padding: int, extra: int = 0, groups: int = 1
    ) -> str:
        """Add a ConvTranspose with bias."""
        axes, depth = len(self.shape(x)) - 2, self.shape(x)[1]
        fan_in = depth // groups * max(1, kernel // stride) ** axes
        weight = self.weight(depth, channels // groups, *[kernel] * axes, fan_in=fan_in)
        return self.add(
            "ConvTranspose", x, weight, self.bias(channels), kernel_shape=[kernel] * axes, strides=[stride] * axes,
            pads=[padding] * (2 * axes), output_padding=[extra] * axes, group=groups,
        )  # fmt: skip

    # -- activations and norms ------------------------------------------------------------------------------

    def activation(self, x: str, *among: str) -> tuple[str, str]:
        """Add one of `among`, by default of `ACTIVATIONS`; return its output and its name."""
        kind = self.choices.one_of(*(among or ACTIVATIONS))
        return self.activated(x, kind), kind

    def activated(self, x: str, kind: str) -> str:
        """Add this activation as exporters write it."""
        if kind == "SiLU":
            return self.silu(x)
        if kind == "Clip 0..6":
            return self.add("Clip", x, self.scalar(0), self.scalar(6))
        if kind == "GELU by erf as nodes":
            inner = self.add("Add", self.add("Erf", self.add("Div", x, self.scalar(math.sqrt(2)))), self.scalar(1))
            return self.add("Mul", self.add("Mul", x, inner), self.scalar(0.5))
        if kind.startswith("GELU"):
            return self.add("Gelu", x, approximate="tanh" if kind.endswith("tanh") else "none")
        return x if kind == "none" else self.add(kind, x)

    def norm(self, x: str, *among: str) -> tuple[str, str]:
        """Add one of the norms `among` of a map [N, C, ..]; return its output and its name, "none" for none."""
        kind = self.choices.one_of(*among)
        if kind == "BatchNorm":
            x = self.batch_norm(x)
        elif kind == "GroupNorm":
            x = self.group_norm(x, self.choices.one_of(1, 8, 16, 32))
        elif kind == "InstanceNorm":
            x = self.add("InstanceNormalization", x, self._scale(self.shape(x)[1]), self.bias(self.shape(x)[1]))
        return x, kind

    def batch_norm(self, x: str) -> str:
        """Add a BatchNormalization with statistics as weights."""
        channels = self.shape(x)[1]
        return self.add("BatchNormalization", x, self._scale(channels), self.bias(channels), self.bias(channels),
                        self._scale(channels), epsilon=1e-5)  # fmt: skip

    def group_norm(self, x: str, groups: int) -> str:
        """Add a GroupNorm as PyTorch's exporter writes it: an InstanceNormalization of groups, then scale and bias."""
        size, channels, *spatial = self.shape(x)
        groups = math.gcd(groups, channels)
        ones, zeros = (np.full(groups, value, np.float32) for value in (1, 0))
        split = self.reshape(x, 0, groups, -1)
        split = self.add("InstanceNormalization", split, self.constant(ones), self.constant(zeros), epsilon=1e-5)
        whole = self.reshape(split, size, channels, *spatial)
        shape = (channels, *[1] * len(spatial))
        scale = self.constant(self.uniform(shape, 0.1) + np.float32(1))
        return self.add("Add", self.add("Mul", whole, scale), self.constant(self.uniform(shape, 0.1)))

    def rms_norm(self, x: str) -> str:
        """Add a root mean square norm of the last axis as nodes."""
        mean = self.add("ReduceMean", self.add("Pow", x, self.scalar(2)), self.ints(-1), keepdims=1)
        root = self.add("Sqrt", self.add("Add", mean, self.scalar(1e-6)))
        return self.add("Mul", self._scale(self.shape(x)[-1]), self.add("Mul", x, self.add("Reciprocal", root)))

    def row_norm(self, x: str) -> tuple[str, str]:
        """Add a LayerNorm or an RMSNorm of the last axis; return its output and its name."""
        if self.choices.chance(0.6):
            return self.layer_norm(x), "LayerNorm"
        return self.rms_norm(x), "RMSNorm"

    def squeeze_excite(self, x: str, inner: int) -> tuple[str, str]:
        """Scale each channel by its mean's two small convolutions; return the output and a description."""
        channels = self.shape(x)[1]
        kind = self.choices.one_of("Sigmoid", "Sigmoid", "HardSigmoid")
        squeezed = self.add("GlobalAveragePool", x) if self.choices.chance(0.5) else self.add(
            "ReduceMean", x, self.ints(2, 3), keepdims=1)  # fmt: skip
        y, activation = self.activation(self.conv(squeezed, inner), "Relu", "SiLU")
        scale = self.add(kind, self.conv(y, channels))
        return self.add("Mul", x, scale), f"squeeze-and-excite {inner} {activation} {kind}"

    def resize(self, x: str, factor: int, mode: str) -> str:
        """Add a Resize of the two last axes, as PyTorch's exporter writes it."""
        scales = self.constant(np.array([1, 1, factor, factor], np.float32))
        coordinates = {"nearest": "asymmetric", "linear": "pytorch_half_pixel"}[mode]
        extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
        return self.add("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=coordinates, **extra)

    def _scale(self, length: int) -> str:
        return self.constant(self.uniform((length,), 0.1) + np.float32(1))
