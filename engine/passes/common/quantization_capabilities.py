"""`QuantizationCapabilities`: which quantized products a device multiplies as integers, and why not the others."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from engine.ir import Constant, ElementType, Node, Output, i8, u8
from engine.ops.conv import ConvSpec
from engine.ops.matmul import GemmSpec, MatMulSpec
from engine.ops.quantize import QuantizeSpec
from engine.ops.spec import OperatorSpec, spec_of
from engine.passes.config import PassConfig
from engine.passes.fusion import constant_data
from engine.startup import dataclass

__all__ = ["Granularity", "PrecisionRestriction", "QuantizationCapabilities"]

Limits: TypeAlias = Callable[[OperatorSpec], str | None]
_BYTES: Final = frozenset({u8, i8})
_OPERATORS: Final = ("Conv", "MatMul", "AveragePool", "Add", "Mul", "Softmax")
_MAPS: Final = {
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "ReduceMean", "QuantizedAveragePool"), "AveragePool"),
    "Add": "Add", "Mul": "Mul",
}  # fmt: skip
_MOVERS: Final = ("DequantizeSinking", "QuantizeHoisting")


class Granularity(enum.StrEnum):
    """The parts of a weight tensor that have a scale of their own."""

    TENSOR = "tensor"
    CHANNEL = "channel"
    """One for each output channel of a convolution, or column of a product."""
    BLOCK = "block"
    """One for each block of numbers that are multiplied and summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRestriction:
    """The nodes of one operator that a device's integer kernels compute; the others stay in f32.

    Attributes:
        operator: "Conv"; "MatMul", which also stands for Gemm, MatMulInteger and fused forms; "AveragePool", also for
            global ones; "Add" or "Mul" of two maps; "Softmax" along the last axis. The following fields are for Conv
            and MatMul only.
        activations: the integer types of x.
        weights: the integer types of constant weights in the model; kernels receive i8.
        granularity: the scales of weights, per tensor or per channel.
        symmetric_weights: weights have zero point 0 as i8, or 128 as u8; otherwise kernels receive zero points.
        computed_weights: for MatMul: products of two computed matrices also have a kernel.
        computed_scales: the scale and zero point of x may be computed during an inference, as in dynamic quantization.
        group_multiple: input and output channels of a group are multiples of it; None for kernels without groups.
        depthwise: groups of one input and one output channel have a kernel.
        transposed: transposed convolutions have a kernel; the other fields apply to their groups, too.
        max_terms: the number of products of u8 and i8 in a sum that the accumulator holds.
        limits: further limits of a node, as a text that says why it stays in f32; its operator is one of those above.
    """

    operator: str
    activations: frozenset[ElementType] = _BYTES
    weights: frozenset[ElementType] = _BYTES
    granularity: frozenset[Granularity] = frozenset({Granularity.TENSOR, Granularity.CHANNEL})
    symmetric_weights: bool = True
    computed_weights: bool = False
    computed_scales: bool = False
    group_multiple: int | None = 1
    depthwise: bool = True
    transposed: bool = False
    max_terms: int = (2**31 - 1) // (255 * 128)
    limits: Limits | None = None


class QuantizationCapabilities:
    """The integer products of a device, as its developer declares them.

    `configure` enables the passes that make `engine.QuantizedConv` and `engine.QuantizedMatMul`, for what is declared.
    Whatever else a quantized model contains is computed in f32, and queries report the reason.

    Args:
        device: the device's name, for reasons.
        restrictions: at most one for each operator; an operator without one stays in f32.
        moved: the integer types that the device's kernels for data movement take: quantization moves past it.
        tables: the device has a kernel for `engine.ByteTable`, functions of one 8-bit tensor.
    """

    def __init__(
        self,
        device: str,
        restrictions: Iterable[PrecisionRestriction],
        *,
        moved: frozenset[ElementType] = _BYTES,
        tables: bool = False,
    ) -> None:
        self.device: Final = device
        self.moved: Final = moved
        self.tables: Final = tables
        self._restrictions: Final[dict[str, PrecisionRestriction]] = {}
        for restriction in restrictions:
            if restriction.operator not in _OPERATORS:
                raise ValueError(f"{restriction.operator!r} is not one of {', '.join(_OPERATORS)}")
            if restriction.operator in self._restrictions:
                raise ValueError(f"{restriction.operator} has two restrictions; expected at most one")
            if restriction.max_terms < 1:
                raise ValueError(f"max_terms of {restriction.operator} is {restriction.max_terms}; expected at least 1")
            if Granularity.BLOCK in restriction.granularity:
                raise ValueError(
                    f"granularity of {restriction.operator} contains {Granularity.BLOCK}; quantized operators have a "
                    "scale per tensor or channel: CompressedWeightsFusion is for those with a scale for each block"
                )
            self._restrictions[restriction.operator] = restriction

    def configure(self, config: PassConfig) -> None:
        """Enable the passes for quantized models, except those for operators that the device does not compute on
        integers.
        """
        config.enable("QOperatorDecomposition", "DequantizedConstantFolding", "QuantizedFusion")
        config.set_callback("QuantizedFusion", callback=self.why_real)
        config.set_callback(*_MOVERS, callback=self.stays_in_place)
        if self.tables:
            config.enable("ByteTableFusion")
        product = self._restrictions.get("MatMul")
        if product is not None and product.computed_weights:
            config.enable("QuantizedProductFusion")
        if "Softmax" in self._restrictions:
            config.enable("QuantizedSoftmaxFusion")
        if self._restrictions.keys() & _MAPS.values():
            config.enable("QuantizedMapsFusion")
            config.set_callback("QuantizedMapsFusion", callback=self._why_real_map)

    def _why_real_map(self, node: Node) -> str | None:
        """The same for pooling and arithmetic of maps; `node` may be the quantization after it."""
        source = node.input_value(0).node if node.op_type == "QuantizeLinear" else node
        operator = _MAPS.get(source.op_type)
        if operator is None or operator in self._restrictions:
            return None
        return f"{self.device} has no integer kernel for {operator}"

    def stays_in_place(self, node: Node) -> bool:
        """Whether quantization does not move past a QuantizeLinear, or a node that reads a DequantizeLinear.

        That of constants always moves: it is computed when the model is compiled.
        """
        codes = node.output(0) if node.op_type == "QuantizeLinear" else node.input_value(0).node.input_value(0)
        return codes.element_type not in self.moved and not isinstance(codes.node, Constant)

    def why_real(self, node: Node) -> str | None:
        """Why the device computes a convolution or product of quantized values in f32; None if it does not.

        None also for other operators, and for nodes that no device can compute: `QuantizedFusion` knows those reasons.
        """
        from engine.passes.common.quantized_operands import dequantization_of  # with what only quantized models need

        spec = spec_of(node)
        if not isinstance(spec, ConvSpec | MatMulSpec | GemmSpec) and node.op_type != "MatMulInteger":
            return None
        if node.op_type.startswith("Quantized"):
            return None
        operator = "Conv" if isinstance(spec, ConvSpec) else "MatMul"
        restriction = self._restrictions.get(operator)
        if restriction is None:
            return f"{self.device} has no integer kernel for {operator}"
        if isinstance(spec, ConvSpec) and spec.transposed and not restriction.transposed:
            return f"{self.device} has no integer kernel for transposed convolutions"
        if node.op_type == "MatMulInteger":
            if not restriction.computed_scales:
                return f"the scale of A is computed; {self.device} multiplies by constant scales only"
            weights = node.input_value(1)
            if constant_data(weights) is None:
                return "both factors are computed; integer products with scales take constant weights"
            return self._why_weights(restriction, weights, node.input_value(3) if node.has_input(3) else None, 1)
        source = dequantization_of(node.input_value(0))
        if source is not None and (codes := source.input_value(0)).element_type not in restriction.activations:
            return f"x is quantized to {codes.element_type}; {self.device} multiplies {_names(restriction.activations)}"
        dequantized = dequantization_of(node.input_value(1))
        if dequantized is None or constant_data(dequantized.input_value(0)) is None:
            return None
        return self._why_dequantized(restriction, spec, dequantized)

    def _why_dequantized(self, restriction: PrecisionRestriction, spec: OperatorSpec, dequantize: Node) -> str | None:
        from engine.passes.common.qdq_propagation import is_per_tensor

        weights = dequantize.input_value(0)
        axis = int(spec.transposed) if isinstance(spec, ConvSpec) else 0 if _is_transposed(spec) else 1
        quantization = QuantizeSpec.of(dequantize)
        granularity = Granularity.TENSOR if is_per_tensor(dequantize) else Granularity.CHANNEL
        if quantization.block_size:
            granularity = Granularity.BLOCK
        if granularity not in restriction.granularity:
            allowed = " or ".join(f"one for each {item}" for item in sorted(restriction.granularity))
            return f"weights have a scale for each {granularity}; {self.device} takes {allowed}"
        zero_point = dequantize.input_value(2) if dequantize.has_input(2) else None
        why = self._why_weights(restriction, weights, zero_point, axis)
        if why is None and isinstance(spec, ConvSpec):
            why = self._why_groups(restriction, spec, weights.shape.get_shape())
        if why is None and restriction.limits is not None:
            why = restriction.limits(spec)
        return why

    def _why_weights(
        self, restriction: PrecisionRestriction, weights: Output, zero_point: Output | None, axis: int
    ) -> str | None:
        if weights.element_type not in restriction.weights:
            return f"weights are of {weights.element_type}; {self.device} multiplies {_names(restriction.weights)}"
        center = 128 if weights.element_type is u8 else 0
        points = None if zero_point is None else constant_data(zero_point)
        if restriction.symmetric_weights:
            other = center if zero_point is None and center else None
            if points is not None and (points != center).any():
                other = points[points != center].flat[0]
            elif other is not None:
                other = 0
            if other is not None:
                return (
                    f"weights of {weights.element_type} have zero point {other}; {self.device} multiplies symmetric "
                    f"weights only: here, zero point {center}"
                )
        shape = weights.shape.get_shape()
        terms = math.prod(shape) // max(1, shape[axis]) if len(shape) > axis else 0
        if terms > restriction.max_terms:
            return f"a sum has {terms:,} products: more than the {restriction.max_terms:,} of {self.device}"
        return None

    def _why_groups(self, restriction: PrecisionRestriction, spec: ConvSpec, weights: tuple[int, ...]) -> str | None:
        if spec.group == 1:
            return None
        inputs, outputs = weights[1], weights[0] // spec.group
        multiple = restriction.group_multiple
        if inputs == outputs == 1:
            return None if restriction.depthwise else f"{self.device} has no integer kernel for depthwise convolutions"
        if multiple is None:
            return f"the convolution has {spec.group} groups; {self.device} has no integer kernel for groups"
        if inputs % multiple or outputs % multiple:
            return (
                f"groups have {inputs} input and {outputs} output channels; {self.device} takes multiples of {multiple}"
            )
        return None


def _is_transposed(spec: OperatorSpec) -> bool:
    return (isinstance(spec, MatMulSpec) and spec.trans_b) or (isinstance(spec, GemmSpec) and spec.transB)


def _names(element_types: Iterable[ElementType]) -> str:
    return ", ".join(sorted(str(item) for item in element_types))
