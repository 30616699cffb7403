"""`WidenPrecision`: a model stored in f16 or bf16 computes in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.ir import Constant, Model, Node, Output, Parameter, Result, TensorType, ValueType, f32
from engine.ir.element_type import bf16, f16
from engine.ops import find_op
from engine.ops.internal import INTERNAL_DOMAIN
from engine.passes.base import ModelPass
from engine.passes.common.precision_rules import moves
from engine.passes.type_conversion import TypeConversion

NARROW: Final = frozenset({f16, bf16})
_STORED: Final = {(INTERNAL_DOMAIN, "ExpertMatMul"): 2}
"""An input of an operator that kernels widen as they read it: so constants of a mapped file stay there."""


class WidenPrecision(ModelPass):
    """Computes values of f16 and bf16 in f32, for devices whose kernels take f32; inputs and outputs keep their types.

    Constants are widened once. Network outputs are rounded to their types, but inner values only where they enter a
    node with bodies or an operator without f32. So they keep the precision and the range of f32: a value that overflows
    f16 may not overflow here.

    Args:
        accepts: whether the device has a kernel for a node as it is. Casts, and nodes that only move elements and are
            accepted, stay unless they read a converted value: the table of an embedding is not widened.
    """

    by_default = False

    def __init__(self, accepts: Callable[[Node], bool] = lambda node: False) -> None:
        self._accepts = accepts

    def run_on_model(self, model: Model) -> bool:
        """Linear in the number of nodes and, when they are read, the bytes of constants; True if anything changed."""
        nodes = model.ordered_nodes()
        if not any(_is_narrow(value_type) for node in nodes for value_type in node.output_types):
            return False  # as in most models
        conversion = _Widening()
        for node in nodes:
            if isinstance(node, (Parameter, Constant)):
                continue
            reads_converted = any(value in conversion.changed for value in node.input_values)
            converted = conversion.converted(node) if self._may_change(node, reads_converted) else None
            if converted is None:
                conversion.restore(node)
            else:
                conversion.replace(node, converted)
                self.rewrites += 1
        return self.rewrites > 0

    def _may_change(self, node: Node, reads_converted: bool) -> bool:
        if isinstance(node, Result) or node.bodies or self.transformation_callback(node):
            return False
        stays = moves(node) and self._accepts(node)
        return reads_converted or not (stays or node.op_type in ("Cast", "CastLike"))


class _Widening(TypeConversion):
    """From f16 and bf16 to f32, which holds all their values."""

    def __init__(self) -> None:
        super().__init__(f32)

    def is_source(self, value: Output | None) -> bool:
        return value is not None and _is_narrow(value.type)

    def movable(self, node: Node) -> set[int]:
        """All inputs of a narrower type, if the operator takes f32 for every one of them."""
        op = find_op(node.op_type, node.domain)
        if op is None or not op.inputs:
            return set()
        found = {i for i, value in enumerate(node.input_values) if value in self.changed or self.is_source(value)}
        if not all(f32 in op.input_port(index).elements for index in found):
            return set()
        stored = _STORED.get((node.domain, node.op_type))
        return {index for index in found if index != stored or node.input_value(index) in self.changed}

    def constant(self, constant: Constant) -> Constant:
        value_type = constant.output(0).type
        assert isinstance(value_type, TensorType)

        def widened(data: NDArray[Any]) -> NDArray[Any]:
            return np.ascontiguousarray(data.astype(np.float32))

        return Constant.derived([constant], TensorType(f32, value_type.shape), widened)


def _is_narrow(value_type: ValueType) -> bool:
    return type(value_type) is TensorType and value_type.element_type in NARROW
