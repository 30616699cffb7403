"""ONNX's own inference over a whole skeleton: fast, and in C++ that trusts what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import onnx
import onnx.shape_inference

from engine.onnx.functions import walk_graphs
from engine.onnx.hazards import hide_hazards, hide_vector_makers, show_hidden
from engine.ops import CANONICAL_VERSIONS

_MAX_LENGTH: Final = 1 << 24
_MAX_ELEMENTS: Final = 1 << 18


def infer_graph(model: onnx.ModelProto, *, is_mixed: bool = False) -> onnx.ModelProto:
    """`model` with every type that ONNX can infer in the value_info and outputs of its graphs.

    What the file declared of the main graph's values is dropped first, unless their operator is not ONNX's: it may
    be wrong, and ONNX stops at a contradiction. Where ONNX refuses the model as a whole it comes back without,
    as it does where `is_mixed` says that its nodes are not all of one opset.
    """
    graph = model.graph
    foreign = {name for node in graph.node if node.domain not in CANONICAL_VERSIONS for name in node.output}
    kept = [value for value in graph.value_info if value.name in foreign]
    graph.ClearField("value_info")
    graph.value_info.extend(kept)
    # A value that nothing computes has no other source of its type.
    given = foreign | {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for value in graph.output:
        if value.name not in given:
            value.ClearField("type")
    if is_mixed:
        return model
    parts = list(walk_graphs(graph))
    _clean(parts)
    hide_hazards(parts)
    inferred = _infer(model, data_prop=False)
    found = _parts_of(inferred.graph, len(parts))
    if _profits_from_values(found):
        hide_vector_makers(parts, found)
        inferred = _infer(model, data_prop=True)
        found = _parts_of(inferred.graph, len(parts))
    show_hidden(found)
    return inferred


def _parts_of(graph: onnx.GraphProto, count: int) -> list[onnx.GraphProto]:
    """The graph and its bodies, of which there are `count`; most models have none to look for."""
    return [graph] if count == 1 else list(walk_graphs(graph))


def _infer(model: onnx.ModelProto, *, data_prop: bool) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    except Exception:
        # C++ exceptions of any kind; then each node is inferred by itself, with errors that name it.
        return model


def _clean(parts: Sequence[onnx.GraphProto]) -> None:
    """Drop from declared types what ONNX takes at its word: element type 0, and negative lengths."""
    for part in parts:
        for value in (*part.input, *part.value_info, *part.output):
            tensor = value.type.tensor_type
            if not tensor.elem_type and value.type.HasField("tensor_type"):
                value.ClearField("type")
                continue
            for dim in tensor.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


def _profits_from_values(parts: Sequence[onnx.GraphProto]) -> bool:
    """Whether lengths are unknown that may come from computed shapes, and it is safe to let ONNX compute these.

    Its data propagation keeps an object for every element of any vector whose length it knows, of whatever type:
    150 ns and 100 bytes each, for as many as a file says.
    """
    elements, is_open = 0, False
    for part in parts:
        for value in (*part.input, *part.value_info, *part.output):
            tensor = value.type.tensor_type
            dims = tensor.shape.dim
            lengths = [dim.dim_value for dim in dims]
            is_open = is_open or 0 in lengths or not tensor.HasField("shape")
            if lengths and max(lengths) > _MAX_LENGTH:
                return False
            if len(lengths) == 1:
                elements += lengths[0]
    return is_open and elements <= _MAX_ELEMENTS
