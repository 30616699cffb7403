"""`ConvertPrecision`: an f32 model computes in a narrower type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, ElementType, Model, Node, Output, Parameter, Result, TensorType, f32
from engine.ir.element_type import f16
from engine.ops import find_op
from engine.passes.base import ModelPass
from engine.passes.common.precision_rules import KEEP_PRECISION, is_real, kept_nodes
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.type_conversion import TypeConversion


class ConvertPrecision(ModelPass):
    """Converts the intermediate values of an f32 model to another floating-point type; inputs and outputs stay f32.

    Constants are converted once. `precision_rules.kept_nodes` defines the nodes that stay in f32, with casts around
    them. Casts to the narrower type clamp values beyond its range, infinities included, to its largest number, so that
    a softmax over masks of -1e9 alone does not give NaN; NaN stays. Values computed in the narrower type overflow to
    infinity, as in every model of that type.

    Args:
        target: the type; f16.
        accepts: called with each converted node, which stays f32 if the result is False, for example because the device
            has no kernel for it in the narrower type.
    """

    def __init__(self, target: ElementType = f16, accepts: Callable[[Node], bool] = lambda node: True) -> None:
        if target is not f16:
            raise PassError(f"ConvertPrecision: target is {target}; expected f16")
        self._target = target
        self._accepts = accepts

    def run_on_model(self, model: Model) -> bool:
        """Linear in the number of nodes and the bytes of constants; True if anything was converted."""
        kept = kept_nodes(model, self._target)
        conversion = _Conversion(self._target)
        for node in model.ordered_nodes():
            if isinstance(node, (Parameter, Constant)):
                continue
            converted = None
            if node not in kept and not isinstance(node, Result) and not self.transformation_callback(node):
                converted = conversion.converted(node)
            if converted is None or not self._accepts(converted):
                conversion.restore(node)
                continue
            conversion.replace(node, converted)
            self.rewrites += 1
        return self.rewrites > 0


class _Conversion(TypeConversion):
    """From f32 to the narrower type, with values beyond its range clamped."""

    def is_source(self, value: Output | None) -> bool:
        return is_real(value)

    def movable(self, node: Node) -> set[int]:
        """The inputs whose type is tied to the first input's or an output's, and may be the narrower one."""
        op = find_op(node.op_type, node.domain)
        if op is None or not op.inputs:
            return set()
        reals = [i for i, value in enumerate(node.input_values) if value in self.changed or is_real(value)]
        names = {op.input_port(0).type_name}
        names |= {p.type_name for p, output in zip(op.outputs, node.outputs, strict=False) if is_real(output)}
        ports = {index: op.input_port(index) for index in reals}
        return {i for i, port in ports.items() if port.type_name in names and self.target in port.elements}

    def cast(self, value: Output, reader: Node) -> Node:
        limit = float(np.finfo(self.target.numpy).max)
        clipped = ops.Clip(value, Constant(-limit, f32), Constant(limit, f32))
        made = ops.Cast(clipped, to=self.target.onnx)
        copy_runtime_info(reader, [clipped, made])
        clipped.rt_info[KEEP_PRECISION] = True
        return made

    def constant(self, constant: Constant) -> Constant:
        value_type = constant.output(0).type
        assert isinstance(value_type, TensorType)
        limit = np.finfo(self.target.numpy).max

        def narrowed(data: NDArray[Any]) -> NDArray[Any]:
            finite = np.clip(data, -float(limit), float(limit))
            return np.ascontiguousarray(np.where(np.isfinite(data), finite, data).astype(self.target.numpy))

        return Constant.derived([constant], TensorType(self.target, value_type.shape), narrowed)
