"""Step one of compiling: transform the user's model for lowering."""

from __future__ import annotations

from functools import cache
from typing import Final

from engine.ir import Constant, Node
from engine.lowering import prepare
from engine.ops.quantize import are_usual
from engine.passes import Manager, PassPipeline
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.convert_precision import ConvertPrecision
from engine.passes.common.qoperator_decomposition import QOperatorDecomposition
from engine.passes.common.quantization_capabilities import PrecisionRestriction, QuantizationCapabilities
from engine.passes.common.quantization_decomposition import QuantizationDecomposition
from engine.plugin_api import Model
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.lowering import LOWERINGS, OpenclGraph, lowerings_of

CAPABILITIES: Final = QuantizationCapabilities(
    "OPENCL",
    [
        PrecisionRestriction(operator="Conv", symmetric_weights=False),
        PrecisionRestriction(operator="MatMul", symmetric_weights=False, computed_scales=True),
    ],
)
"""The integer products of a device that multiplies 8-bit integers faster than f32."""
_SLOW: Final = "f32 is faster on this device: OPENCL multiplies integers on GPUs with cl_khr_integer_dot_product"
_IN_F32: Final = QuantizationCapabilities(
    "OPENCL", [PrecisionRestriction(operator=name, limits=lambda spec: _SLOW) for name in ("Conv", "MatMul")]
)
"""The integer products of other devices: none."""
_SCALES: Final = (1, 4, 6)
"""The inputs of QLinearConv and QLinearMatMul that are scales."""


def prepare_model(model: Model, facts: DeviceFacts, precision: str = "f32") -> OpenclGraph:
    """A transformed and folded copy of `model`, with the decisions for its nodes; f32 is stored in `precision`."""
    return prepare(model, lowerings_of(facts), passes_for(precision, facts.multiplies_integers))


@cache
def passes_for(precision: str, on_integers: bool) -> PassPipeline:
    """The passes that a device runs on every model of a precision.

    `on_integers`: products of quantized values are integer products.
    """

    def register(manager: Manager) -> None:
        manager.register_pass(CommonOptimizations)
        LOWERINGS.configure(manager.pass_config)
        if precision == "f32":
            (CAPABILITIES if on_integers else _IN_F32).configure(manager.pass_config)
            manager.pass_config.set_callback(QOperatorDecomposition, callback=_is_codes_kernel)
            # The resulting operators are computed together with the operators before and after them.
            manager.pass_config.set_callback(QuantizationDecomposition, callback=lambda node: False)
        else:  # arithmetic in f16 would round codes
            manager.pass_config.set_callback(QuantizationDecomposition, callback=_stays)
        if precision == "f16":
            manager.register_pass(ConvertPrecision(accepts=LOWERINGS.has_kernel))

    return PassPipeline(register)


def _is_codes_kernel(node: Node) -> bool:
    """Whether there is a kernel for an operator of codes with its scales."""
    if node.op_type == "Resize":
        return False
    scales = [node.input_value(index).node for index in _SCALES]
    return all(isinstance(scale, Constant) and are_usual(scale.data) for scale in scales)


def _stays(node: Node) -> bool:
    """Whether a quantization or dequantization stays: all but the ones of constants that have no kernel."""
    is_constant = all(value is None or isinstance(value.node, Constant) for value in node.input_values)
    return node.op_type != "DequantizeLinear" or not is_constant or LOWERINGS.has_kernel(node)
