"""ONNX's own inference over a whole skeleton: fast, but its C++ does not validate the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.onnx.foreign import is_known
from engine.onnx.functions import walk_graphs
from engine.onnx.hazards import hidden_domains, hide_hazards, hide_vector_makers, show_hidden
from engine.ops import CANONICAL_VERSIONS
from engine.startup.onnx_library import onnx

_MAX_LENGTH: Final = 1 << 24
_MAX_ELEMENTS: Final = 1 << 18


def infer_graph(model: onnx.ModelProto, *, is_mixed: bool = False) -> onnx.ModelProto:
    """`model` with every type that ONNX can infer in the value_info and outputs of its graphs.

    Types that the file declares for values are dropped first, except for outputs of custom operators: they may be
    wrong, and ONNX stops at a contradiction. PyTorch's older exporter gives both branches of an If the types of one.
    If ONNX rejects the model as a whole, it is returned without types, and so it is if `is_mixed`, which means that its
    nodes are of several opsets.
    """
    graph = model.graph
    parts = list(walk_graphs(graph))
    for part in parts:
        _drop_declared(part)
    if is_mixed:
        return model
    _clean(parts)
    _drop_trailing_names(parts)
    hide_hazards(parts)
    with hidden_domains(model):
        inferred = _infer(model, data_prop=False)
        found = _parts_of(inferred.graph, len(parts))
        if _profits_from_values(found):
            hide_vector_makers(parts, found)
            inferred = _infer(model, data_prop=True)
            found = _parts_of(inferred.graph, len(parts))
    show_hidden(found)
    return inferred


def _drop_declared(graph: onnx.GraphProto) -> None:
    foreign = {
        name
        for node in graph.node
        if node.domain not in CANONICAL_VERSIONS and not is_known(node.op_type, node.domain)
        for name in node.output
    }
    kept = [value for value in graph.value_info if value.name in foreign]
    graph.ClearField("value_info")
    graph.value_info.extend(kept)
    # An output without a producer has the type of the input or initializer, whatever it is declared as.
    given = {value.name: value.type for value in graph.input}
    for tensor in graph.initializer:
        given[tensor.name] = _type_of(tensor)
    for value in graph.output:
        if value.name in given:
            value.type.CopyFrom(given[value.name])
        elif value.name not in foreign:
            value.ClearField("type")


def _type_of(tensor: onnx.TensorProto) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = tensor.data_type
    proto.tensor_type.shape.SetInParent()  # a scalar has a shape without dimensions
    for length in tensor.dims:
        proto.tensor_type.shape.dim.add().dim_value = length
    return proto


def _parts_of(graph: onnx.GraphProto, count: int) -> list[onnx.GraphProto]:
    """The graph and its bodies, `count` graphs in total; most models have no bodies, so no search is needed."""
    return [graph] if count == 1 else list(walk_graphs(graph))


def _infer(model: onnx.ModelProto, *, data_prop: bool) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    except Exception:
        # Any C++ exception; each node is then inferred separately, with errors that name it.
        return model


def _clean(parts: Sequence[onnx.GraphProto]) -> None:
    """Drop the parts of declared types that ONNX does not check: element type 0, and negative lengths."""
    for part in parts:
        for value in (*part.input, *part.value_info, *part.output):
            tensor = value.type.tensor_type
            if not tensor.elem_type and value.type.HasField("tensor_type"):
                value.ClearField("type")
                continue
            for dim in tensor.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


def _drop_trailing_names(parts: Sequence[onnx.GraphProto]) -> None:
    """Drop empty names at the end of a node's inputs: ONNX counts them as given inputs of some operators."""
    for part in parts:
        for node in part.node:
            while node.input and not node.input[-1]:
                node.input.pop()


def _profits_from_values(parts: Sequence[onnx.GraphProto]) -> bool:
    """Whether some unknown lengths may come from computed shapes, and it is safe to let ONNX compute these.

    Its data propagation creates an object for every element of any vector of known length, of any element type:
    150 ns and 100 bytes each, for any number that the file states.
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
