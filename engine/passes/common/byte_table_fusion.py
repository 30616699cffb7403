"""`ByteTableFusion`: elementwise operators of one quantized tensor, between quantizations, as a table."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Model, Node, Output, Parameter, PartialShape, TensorType, i8, u8
from engine.ops import evaluate_model
from engine.ops.internal import INTERNAL_DOMAIN, ByteTable, byte_codes
from engine.ops.quantize import QuantizeSpec
from engine.ops.tensors import Array
from engine.ops.traits import traits_of
from engine.passes.fusion import replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass

_BYTES: Final = (u8, i8)
_QUANTIZATION: Final = frozenset({"QuantizeLinear", "DequantizeLinear"})
_MAX_NODES: Final = 64


class ByteTableFusion(MatcherPass):
    """Turns a function of one 8-bit tensor, between DequantizeLinear and QuantizeLinear, into `engine.ByteTable`.

    The function may have any number of elementwise operators, quantizations and numbers: a Sigmoid whose quantized
    result is multiplied with its argument is one table. The reference evaluator computes the table, so results are
    exact. Scales and zero points must be constants, one for each tensor. Needs a device kernel, so disabled unless a
    `PassConfig` enables it.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("QuantizeLinear"), "ByteTableFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if node.output(0).element_type not in _BYTES or self.transformation_callback(node):
            return False
        function = _Function(node)
        if not function.includes(node.output(0)) or function.argument is None:
            return False
        made = ByteTable(function.argument, Constant(function.table()))
        return replace_by(node, function.nodes, [made])


class _Function:
    """The operators that compute the result of a node from one 8-bit tensor and numbers."""

    def __init__(self, result: Node) -> None:
        self.result = result
        self.argument: Output | None = None
        self.nodes: dict[Node, None] = {}
        """In topological order."""

    def includes(self, value: Output) -> bool:
        """Whether `value` is a function of the argument: the first 8-bit tensor that is not the result of a table."""
        node = value.node
        if node in self.nodes or _is_number(value):
            return True
        if value.element_type in _BYTES and not _is_table(node) and node is not self.result:
            self.argument = self.argument or value
            return self.argument == value
        if not _is_step(node) or len(self.nodes) >= _MAX_NODES:
            return False
        if not all(given is None or self.includes(given) for given in _operands(node)):
            return False
        self.nodes[node] = None
        return True

    def table(self) -> Array:
        """The result for every argument."""
        assert self.argument is not None
        codes = byte_codes(self.argument.element_type)
        parameter = Parameter(TensorType(self.argument.element_type, PartialShape(codes.shape)), friendly_name="x")
        made: dict[Output, Output] = {self.argument: parameter.output(0)}
        for node in self.nodes:
            inputs = [None if given is None else made.get(given) or _as_scalar(given) for given in node.input_values]
            copy = ops.create(node.op_type, inputs, node.attributes, domain=node.domain)
            made[node.output(0)] = copy.output(0)
        (result,) = evaluate_model(Model([made[next(reversed(self.nodes)).output(0)]], [parameter]), [codes])
        return np.ascontiguousarray(result).reshape(codes.shape)


def _is_number(value: Output) -> bool:
    return isinstance(value.node, Constant) and value.shape.is_static and value.shape.size() == 1


def _as_scalar(value: Output) -> Output:
    """A number without its axes: a slope [1, 1, 1] of PRelu does not broadcast to the codes, [256]."""
    if not isinstance(value.node, Constant) or not _is_number(value):
        return value
    return Constant(value.node.data.reshape(())).output(0)


def _is_table(node: Node) -> bool:
    if node.domain != INTERNAL_DOMAIN or node.op_type != "ByteTable":
        return False
    return isinstance(node.input_value(1).node, Constant)


def _is_step(node: Node) -> bool:
    """Whether a function may include a node."""
    if node.domain:
        return _is_table(node)
    if node.op_type in _QUANTIZATION:
        is_whole = not QuantizeSpec.of(node).block_size
        return is_whole and all(given is None or _is_number(given) for given in node.input_values[1:])
    return traits_of(node).pointwise


def _operands(node: Node) -> list[Output | None]:
    return [node.input_value(0)] if _is_table(node) else list(node.input_values)
