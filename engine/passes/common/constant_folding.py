"""`ConstantFolding`: operations that depend only on constants become constants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.errors import ModelError
from engine.ir import Constant, Model, Node, Output, TensorType, ValueType, i64, merge_types, undefined
from engine.limits import current_budget
from engine.ops.create import create
from engine.ops.creation import ShapeSpec
from engine.passes.base import ModelPass
from engine.passes.folding import MAX_OUTPUT_BYTES, bytes_allowed, constant_fold, is_foldable
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import infer_again, replace_node


class ConstantFolding(ModelPass):
    """Evaluates operations whose inputs are constants, Shape and Size of static shapes, and CastLike of constants.

    DequantizeLinear stays, since devices compute on its integer input. An operation stays, too, if its result is larger
    than `max_output_bytes` and than its inputs. Random operators are never folded. The callback of `PassConfig`
    returning True keeps a node.
    """

    def __init__(self, max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        self.max_output_bytes = max_output_bytes

    def run_on_model(self, model: Model) -> bool:
        """Fold in topological order; bodies included."""
        changed = False
        made: dict[Node, int] = {}
        stated: dict[Node, list[ValueType]] = {}
        for node in model.ordered_nodes():
            changed |= self.run_on_bodies(node)
            if not (_is_typed(node) or is_foldable(node)) or self.transformation_callback(node):
                continue
            folded = self._fold(node)
            if folded is None:
                continue
            copy_runtime_info(node, [output.node for output in folded])
            for output in node.outputs:
                for target in output.target_inputs:
                    stated.setdefault(target.node, list(target.node.output_types))
            sources = {value.node for value in node.input_values if value is not None}
            replace_node(node, folded)
            made |= {output.node: output.node.byte_size for output in folded if isinstance(output.node, Constant)}
            # Values between two folded operations take memory only until then.
            current_budget().spend(-sum(made.pop(each, 0) for each in sources if not each.is_attached), 0)
            self.rewrites += 1
            changed = True
        _keep_types(stated)
        return changed

    def _fold(self, node: Node) -> list[Output] | None:
        if node.op_type in ("Shape", "Size") and not node.domain:
            return _fold_shape(node)
        if node.op_type == "CastLike" and not node.domain:
            return self._fold_cast(node)
        return constant_fold(node, bytes_allowed(node, self.max_output_bytes))

    def _fold_cast(self, node: Node) -> list[Output] | None:
        """The result of CastLike from the type of its second input alone."""
        source, target = node.input_value(0).node, node.output(0).element_type
        if not isinstance(source, Constant) or target is undefined:
            return None
        cast = create("Cast", [Constant(source.data, source.element_type)], {**node.attributes, "to": target.onnx})
        if node.has_own_name:
            cast.friendly_name = node.friendly_name
        return constant_fold(cast, bytes_allowed(cast, self.max_output_bytes))


def _is_typed(node: Node) -> bool:
    """Whether the result may follow from the types of the inputs alone."""
    return node.op_type in ("Shape", "Size", "CastLike") and not node.domain


def _keep_types(stated: Mapping[Node, list[ValueType]]) -> None:
    """Infer the types of the consumers of new constants; more specific known types, as from the file, are kept."""
    for node, types in stated.items():
        if not node.is_attached:
            continue
        infer_again(node)
        for index, known in enumerate(types):
            try:
                merged = merge_types(known, node.output(index).type)
            except ModelError:
                continue  # the stated type was wrong
            if merged != node.output(index).type:
                node.set_output_type(index, merged)


def _fold_shape(node: Node) -> list[Output] | None:
    """The result of Shape or Size from the type of its input alone."""
    source_type = node.input_value(0).type
    if not isinstance(source_type, TensorType) or source_type.shape.rank.is_dynamic:
        return None
    dims = source_type.shape.dims
    if node.op_type == "Size":
        if source_type.shape.is_dynamic:
            return None
        data = np.array(source_type.shape.size(), np.int64)
    else:
        chosen = ShapeSpec.of(node).at(dims)
        if any(dim.is_dynamic for dim in chosen):
            return None
        data = np.array([dim.get_length() for dim in chosen], np.int64)
    name = node.friendly_name if node.has_own_name else None
    return [Constant(data, i64, friendly_name=name).output(0)]
