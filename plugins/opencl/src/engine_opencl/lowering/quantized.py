"""QuantizedConv and QuantizedMatMul: sums of 8-bit integers, and an epilogue up to the next quantization."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.ir import Constant, ElementType, Output
from engine.ir.element_type import i8
from engine.lowering import Refusal, RefusalCause
from engine.ops.conv import ConvSpec
from engine.ops.fused_activation import Activation
from engine.ops.internal import INTERNAL_DOMAIN, Quantized
from engine.ops.matmul import MatMulSpec
from engine.ops.spec import SpecT
from engine.startup import dataclass
from engine_opencl.elements import c_type
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.conv.conv import check_spatial_rank
from engine_opencl.lowering.conv.parts import window_defines
from engine_opencl.lowering.elementwise import activation_code, literal
from engine_opencl.lowering.registry import OpLowering, lowers
from engine_opencl.plan import WEIGHT, Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_text

Array = NDArray[Any]
_WORD: Final = 4
_ROWS: Final = 4
_CHANNELS: Final = 8
_COMPUTED: Final = frozenset({0, 1, 2, 6})
"""The inputs that may be computed: x, its scale and zero point, and the residual."""


class _QuantizedLowering(OpLowering[SpecT]):
    """Base: weights, bias and the other parameters are constants."""

    def check(self, spec: SpecT) -> Refusal | None:
        for index, value in enumerate(spec.node.input_values):
            if value is not None and index not in _COMPUTED and not isinstance(value.node, Constant):
                return Refusal(RefusalCause.CONSTANT, f"input {index} is computed; expected a constant")
        return None


@lowers("QuantizedConv", domain=INTERNAL_DOMAIN, spec=ConvSpec)
class QuantizedConvLowering(_QuantizedLowering[ConvSpec]):
    """One to three spatial axes, and groups."""

    def check(self, spec: ConvSpec) -> Refusal | None:
        return super().check(spec) or check_spatial_rank(spec.node.input_value(0))

    def lower(self, spec: ConvSpec, b: LaunchPlanBuilder) -> None:
        operands = _Operands(Quantized.of(spec.node), spec.activation, spec.output(), b)
        x, weights = b.shape(spec.node.input_value(0)), b.shape(operands.weights)
        g, groups = spec.at(x, weights).with_axes(3), spec.group
        own, inputs = weights[0] // groups, weights[1]
        channels = min(_CHANNELS, own)
        blocks, taps, words = -(-own // channels), math.prod(weights[2:]), -(-inputs // _WORD)

        def packed() -> Array:
            data = operands.data(operands.weights).reshape(groups, own, inputs, taps)
            full = np.zeros((groups, blocks * channels, words * _WORD, taps), np.int8)
            full[:, :own, :inputs] = data
            full = full.reshape(groups, blocks, channels, words, _WORD, taps)
            return np.ascontiguousarray(full.transpose(0, 1, 5, 3, 2, 4))

        defines = {
            "GROUPS": groups, "GM": own, "C": inputs, "C4": words, "CHANNELS": channels, "BLOCKS": blocks,
            "TERMS": inputs * taps, **window_defines(g),
        }  # fmt: skip
        arguments = operands.arguments(f"conv {groups} {channels}", packed, axis=0)
        size = (math.prod(g.outputs), groups * blocks, x[0])
        b.launch(operands.source("quantized_conv", defines), "quantized_conv", arguments, size)


@lowers("QuantizedMatMul", domain=INTERNAL_DOMAIN, spec=MatMulSpec)
class QuantizedMatMulLowering(_QuantizedLowering[MatMulSpec]):
    """Products of rows with one matrix."""

    def check(self, spec: MatMulSpec) -> Refusal | None:
        x = spec.node.input_value(0)
        if len(x.shape) < 2:
            return Refusal(RefusalCause.RANK, f"A has {len(x.shape)} axes; expected 2 or more")
        return super().check(spec)

    def lower(self, spec: MatMulSpec, b: LaunchPlanBuilder) -> None:
        operands = _Operands(Quantized.of(spec.node), spec.activation, spec.output(), b)
        n, k = b.shape(operands.weights)[:: 1 if spec.trans_b else -1]
        words = -(-k // _WORD)

        def packed() -> Array:
            data = operands.data(operands.weights)
            full = np.zeros((words * _WORD, n), np.int8)
            full[:k] = data.T if spec.trans_b else data
            return np.ascontiguousarray(full.reshape(words, _WORD, n).transpose(0, 2, 1))

        rows = math.prod(b.shape(spec.node.input_value(0))[:-1])
        defines = {"M": rows, "N": n, "K": k, "K4": words, "ROWS": _ROWS, "TERMS": k}
        arguments = operands.arguments(f"matmul {spec.trans_b}", packed, axis=0 if spec.trans_b else 1)
        source = operands.source("quantized_gemm", defines)
        b.launch(source, "quantized_gemm", arguments, (n, -(-rows // _ROWS)))


@dataclass(frozen=True)
class _Operands:
    """The operands of a node, its arguments and epilogue."""

    given: Quantized
    activation: Activation | None
    y: Output
    b: LaunchPlanBuilder

    @property
    def weights(self) -> Output:
        return _output(self.given.weights)

    def data(self, value: object) -> Array:
        """The elements of a constant."""
        data = self.b.constant(_output(value))
        assert data is not None
        return data

    def arguments(self, form: str, packed: Callable[[], Array], axis: int) -> list[Given]:
        """The buffers in the order of the kernels' parameters; `form` names the form of the packed weights."""
        given, b = self.given, self.b
        count = b.shape(self.weights)[axis]
        inner = tuple(index for index in range(len(b.shape(self.weights))) if index != axis)

        def sums() -> Array:
            summed: Array = self.data(self.weights).astype(np.int64).sum(axis=inner)
            return summed.astype(np.int32)

        def vector(value: object, element: type[np.generic]) -> Callable[[], Array]:
            return lambda: np.ascontiguousarray(np.broadcast_to(self.data(value).astype(element), (count,)))

        name = _name(self.weights)
        found: list[Given] = [
            b.input(_output(given.x)),
            b.weight(("quantized", form, name), packed),
            b.weight(("sums", axis, name), sums),
            b.weight(("vector", count, _name(_output(given.weights_scale))), vector(given.weights_scale, np.float32)),
            b.input(_output(given.x_scale)),
            b.input(_output(given.x_zero_point)),
        ]
        if given.weights_zero_point is not None:
            point = given.weights_zero_point
            found.append(b.weight(("vector", count, _name(_output(point))), vector(point, np.int32)))
        others = (given.bias, given.middle_bias, given.residual)
        found += [b.input(_output(value)) for value in others if value is not None]
        return [*found, b.output(self.y)]

    def source(self, kernel: str, defines: dict[str, Any]) -> str:
        """The text of a kernel with this epilogue."""
        given, x = self.given, _output(self.given.x).element_type
        parameters = [("w_zero", "int", given.weights_zero_point), ("bias", "float", given.bias)]
        parameters.append(("middle_bias", "float", given.middle_bias))
        if given.residual is not None:
            parameters.append(("residual", c_type(_output(given.residual).element_type), given.residual))
        given_parameters = [(name, kind) for name, kind, value in parameters if value is not None]
        text = "".join(f", __global const {kind}* restrict {name}" for name, kind in given_parameters)
        defines = {
            "X": c_type(x), "Y": c_type(self.y.element_type), "X_SIGNED": int(x is i8),
            "W_POINT": int(given.weights_zero_point is not None), "PARAMETERS": text, "FINISH": self.finish(),
            **defines,
        }  # fmt: skip
        made = "".join(f"#define {key} {value}\n" for key, value in defines.items())
        return HELPERS + made + kernel_text("quantized") + kernel_text(kernel)

    def finish(self) -> str:
        """Statements on `v`, the scaled sum of `channel`, that store the result at `at`."""
        given = self.given
        lines = []
        if given.bias is not None:
            lines.append("v += bias[channel];")
        if given.middle_scale is not None:
            code = self.code(given.middle_scale, given.middle_zero_point)
            point = int(self.data(given.middle_zero_point).item())
            lines.append(f"v = (float)({code} - ({point})) * {literal(self.data(given.middle_scale).item())};")
        if given.middle_bias is not None:
            lines.append("v += middle_bias[channel];")
        if given.residual_scale is not None:
            point = int(self.data(given.residual_zero_point).item())
            lines.append(f"v += (float)(residual[at] - ({point})) * {literal(self.data(given.residual_scale).item())};")
        elif given.residual is not None:
            lines.append("v += residual[at];")
        if self.activation is not None:
            lines.append(f"v = {activation_code(self.activation, 'v')};")
        result = "v" if given.y_scale is None else self.code(given.y_scale, given.y_zero_point)
        return " ".join([*lines, f"y[at] = {result};"])

    def code(self, scale: object, zero_point: object) -> str:
        """OpenCL C that quantizes `v` by a constant scale and zero point."""
        low, high = _limits(_output(zero_point).element_type)
        numbers = [self.data(scale).item(), float(self.data(zero_point).item()), low, high]
        return f"code_of(v, {', '.join(map(literal, numbers))})"


def _limits(element_type: ElementType) -> tuple[float, float]:
    return (-128.0, 127.0) if element_type is i8 else (0.0, 255.0)


def _output(value: Any) -> Output:
    assert isinstance(value, Output)
    return value


def _name(value: Output) -> object:
    return value.node.rt_info.get(WEIGHT, value.node)
