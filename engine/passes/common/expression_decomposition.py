"""`ExpressionDecomposition`: replaces operators of extensions by the expressions that define them."""

from __future__ import annotations

from engine import ops
from engine.errors import EngineError, PassError
from engine.ir import Model, Node, TensorType
from engine.ops.origin import operator_of
from engine.passes.base import ModelPass
from engine.passes.fusion import fits, nodes_between
from engine.passes.runtime_info import copy_to_steps
from engine.passes.surgery import replace_node


class ExpressionDecomposition(ModelPass):
    """Replaces a node of an extension's operator by the expression that defines it (`Operator.expression`)."""

    removes = frozenset({"operators of extensions"})

    def run_on_model(self, model: Model) -> bool:
        """One walk in topological order, bodies included; linear."""
        changed = False
        for node in model.ordered_nodes():
            changed |= self.run_on_bodies(node)
            if node.domain and not self.transformation_callback(node):
                replaced = self._replace(node)
                self.rewrites += replaced
                changed |= replaced
        return changed

    def _replace(self, node: Node) -> bool:
        operator = operator_of(node)
        given = [value for value in node.input_values if value is not None]
        if operator is None or not all(isinstance(v.type, TensorType) and v.shape.rank.is_static for v in given):
            return False
        try:
            values = operator.expanded(node)
        except EngineError:
            raise
        except Exception as e:
            raise PassError(f"{node}: the expression of {operator} raised {type(e).__name__}: {e}") from e
        values = None if values is None else values[: node.num_outputs]
        if values is None or not all(map(fits, node.outputs, values)):
            return False
        inner = set(nodes_between(values, given))
        values = [value if value.node in inner else ops.Identity(value).output(0) for value in values]  # an input
        made = nodes_between(values, given)
        if self.config is not None and not self.config.lowers(made):
            return False
        for index, each in enumerate(made):
            if not each.has_own_name:
                each.friendly_name = f"{node.friendly_name}/{each.op_type}_{index}"
        for output, value in zip(node.outputs, values, strict=False):
            suffix = "" if node.num_outputs == 1 else f".{output.index}"
            value.node.friendly_name = node.friendly_name + suffix
        copy_to_steps(node, made)
        replace_node(node, values)
        return True
