"""Inputs of a model whose values a plan is made for, as it is for shapes: axes, sizes and counts given at run time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.ir import Constant, Model, Node, Output, Parameter, TensorType
from engine.lowering.checks import BOUND, SHAPE_SOURCES, is_short
from engine.lowering.table import LoweringT, LoweringTable
from engine.passes.folding import is_foldable_operation


def bind_inputs(graph: Model, table: LoweringTable[LoweringT]) -> tuple[int, ...]:
    """Mark, and return the numbers of, the inputs that operations of `graph` need when their plan is made.

    These are the inputs of a model from which `Lowering.values` are computed, by operations that can be folded once
    the inputs are known, if each is a scalar or a short vector (`is_short`). Other computed values are not bound.
    """
    states = {graph.parameter(variable.parameter) for variable in graph.variables}
    for node in graph.ordered_nodes():
        for value in table.values_of(node):
            sources = _sources(value)
            if sources is not None and not states & sources and all(map(_is_short, sources)):
                for parameter in sources:
                    parameter.rt_info[BOUND] = True
    return tuple(number for number, each in enumerate(graph.parameters) if each.rt_info.get(BOUND))


def bind(graph: Model, values: Mapping[int, NDArray[np.generic]]) -> None:
    """Replace the inputs with these numbers by their values; they stay inputs of the graph, which nothing reads."""
    for number, value in values.items():
        graph.parameters[number].output(0).replace(Constant(value).output(0))


def _sources(value: Output) -> set[Parameter] | None:
    """The inputs of the model from whose values `value` is computed; None if that takes more than folding."""
    found: set[Parameter] = set()
    seen: set[Node] = set()
    stack = [value.node]
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Constant) or (node.op_type in SHAPE_SOURCES and not node.domain):
            continue
        seen.add(node)
        if isinstance(node, Parameter):
            found.add(node)
        elif is_foldable_operation(node) and node.num_inputs:
            stack.extend(source.node for source in node.input_values if source is not None)
        else:
            return None
    return found


def _is_short(parameter: Parameter) -> bool:
    return isinstance(parameter.type, TensorType) and is_short(parameter.type.shape)
