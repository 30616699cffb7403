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
from engine.passes.surgery import replace_node


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


class _Conversion:
    """Values in both types: the converted nodes, and the casts and constants made for them."""

    def __init__(self, target: ElementType) -> None:
        self._target = target
        self._changed: set[Output] = set()
        self._narrow: dict[Output, Output] = {}
        self._wide: dict[Output, Output] = {}
        self._named: set[Output] = set()

    def converted(self, node: Node) -> Node | None:
        """The node on inputs of the narrower type; None if its operator lacks that type. The graph is not changed."""
        indices = self._movable(node)
        if not indices and not any(value in self._changed for value in node.input_values):
            return None
        inputs = list(node.input_values)
        for index, value in enumerate(inputs):
            if value is not None and index in indices:
                inputs[index] = value if value in self._changed else self._narrowed(value, node)
            elif value in self._changed:
                assert value is not None
                inputs[index] = self._widened(value)
        if not indices:
            return None
        made = node.clone_with_new_inputs(inputs)
        made.forget_inferred_types()  # the clone already has inputs of the converted types
        made.infer_types()
        return made

    def replace(self, node: Node, converted: Node) -> None:
        """Let the consumers of `node` read the converted one."""
        was_real = [is_real(output) for output in node.outputs]
        for index, (old, new) in enumerate(zip(node.outputs, converted.outputs, strict=True)):
            is_known = isinstance(old.type, TensorType) and old.shape.rank.is_static
            if is_known and isinstance(new.type, TensorType):
                # The importer may have known more of the shape than type inference.
                converted.set_output_type(index, TensorType(new.element_type, old.shape))
        converted.output_names = node.output_names
        converted.settle_types()
        copy_runtime_info(node, converted)
        replace_node(node, converted)
        self._changed |= {
            output
            for output, was in zip(converted.outputs, was_real, strict=True)
            if was and output.element_type is self._target
        }

    def restore(self, node: Node) -> None:
        """Make a node that stays in f32 read f32."""
        for position in node.inputs:
            if node.has_input(position.index) and position.source_output in self._changed:
                source = position.source_output
                position.replace_source_output(self._widened(source))
                if isinstance(node, Result):
                    self._take_name(source, position.source_output)

    def _take_name(self, narrow: Output, wide: Output) -> None:
        """Move the friendly name of a layer that computes a network output to the node that now computes it."""
        if wide in self._named:
            return
        self._named.add(wide)
        suffix = f".{self._target.name}"
        if narrow.node.has_own_name and narrow.node.num_outputs == 1:
            wide.node.friendly_name = narrow.node.friendly_name
            narrow.node.friendly_name += suffix
        if narrow.node.output_names is not None:
            wide.name, narrow.name = narrow.name, narrow.name + suffix

    def _movable(self, node: Node) -> set[int]:
        """The inputs whose type is tied to that of the first input, or of an output, and may be the narrower one."""
        op = find_op(node.op_type, node.domain)
        if op is None or not op.inputs:
            return set()
        reals = [i for i, value in enumerate(node.input_values) if self._is_real(value)]
        names = {op.input_port(0).type_name}
        names |= {p.type_name for p, output in zip(op.outputs, node.outputs, strict=False) if is_real(output)}
        ports = {index: op.input_port(index) for index in reals}
        return {i for i, port in ports.items() if port.type_name in names and self._target in port.elements}

    def _is_real(self, value: Output | None) -> bool:
        return value in self._changed or is_real(value)

    def _narrowed(self, value: Output, node: Node) -> Output:
        if value not in self._narrow:
            if isinstance(value.node, Constant):
                made: Node = _constant(value.node, self._target)
                copy_runtime_info(value.node, made)
            else:
                made = self._cast_down(value, node)
            self._narrow[value] = made.output(0)
        return self._narrow[value]

    def _cast_down(self, value: Output, reader: Node) -> Node:
        limit = float(np.finfo(self._target.numpy).max)
        clipped = ops.Clip(value, Constant(-limit, f32), Constant(limit, f32))
        cast = ops.Cast(clipped, to=self._target.onnx)
        copy_runtime_info(reader, [clipped, cast])
        clipped.rt_info[KEEP_PRECISION] = True
        return cast

    def _widened(self, value: Output) -> Output:
        if value not in self._wide:
            made = ops.Cast(value, to=f32.onnx)
            copy_runtime_info(value.node, made)
            if value.node.has_own_name:
                made.friendly_name = f"{value.node.friendly_name}.{f32.name}"
            self._wide[value] = made.output(0)
        return self._wide[value]


def _constant(constant: Constant, target: ElementType) -> Constant:
    """The constant in another type; values beyond its range are clamped to its limits."""
    value_type = constant.output(0).type
    assert isinstance(value_type, TensorType)
    limit = np.finfo(target.numpy).max

    def converted(data: NDArray[Any]) -> NDArray[Any]:
        finite = np.clip(data, -float(limit), float(limit))
        return np.ascontiguousarray(np.where(np.isfinite(data), finite, data).astype(target.numpy))

    return Constant.derived([constant], TensorType(target, value_type.shape), converted)
