"""`LengthSharing`: a length is read from the input of the model that has it, wherever it is asked for."""

from __future__ import annotations

from engine import ops
from engine.ir import Model, Node, Parameter
from engine.ops.creation import ShapeSpec
from engine.passes.base import ModelPass
from engine.passes.fusion import dims_of, replace_by


class LengthSharing(ModelPass):
    """Makes a Shape of one symbolic length read it from the first input of the model with that symbol.

    Values that layers compute from a shared length, such as positions and masks, are then the same subexpression.
    """

    def run_on_model(self, model: Model) -> bool:
        """One walk over the nodes of `model`; its bodies have no access to its inputs. Linear."""
        sources = _symbols(model)
        changed = False
        for node in model.ordered_nodes() if sources else ():
            if node.op_type == "Shape" and not node.domain and not self.transformation_callback(node):
                shared = _shared(node, sources)
                changed |= shared
                self.rewrites += shared
        return changed


def _symbols(model: Model) -> dict[str, tuple[Parameter, int]]:
    """The first input and axis with each symbol."""
    found: dict[str, tuple[Parameter, int]] = {}
    for parameter in model.parameters:
        for axis, dim in enumerate(dims_of(parameter.output(0)) or ()):
            if dim.is_dynamic and dim.symbol is not None:
                found.setdefault(dim.symbol, (parameter, axis))
    return found


def _shared(node: Node, sources: dict[str, tuple[Parameter, int]]) -> bool:
    value = node.input_value(0)
    dims = dims_of(value)
    if dims is None:
        return False
    lengths = list(ShapeSpec.of(node).at(dims))
    if len(lengths) != 1 or lengths[0].is_static or lengths[0].symbol not in sources:
        return False
    parameter, axis = sources[lengths[0].symbol]
    if value.node is parameter:
        return False
    return replace_by(node, [node], [ops.Shape(parameter, start=axis, end=axis + 1)])
