"""The operator that a check computes, and the element type of its data, for the matrix of types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from engine.ir import ElementType
from engine.ops.cases import OperatorCase
from engine.testing.behaviour.numeric import NumericCase


def subject_of(parameters: Mapping[str, Any]) -> tuple[str, str]:
    """The operator and the type of a check with these parameters; empty if it is not one of a single operator.

    An operator's data is its first input that ONNX allows to have several types: of Where, not the condition.
    """
    case = parameters.get("case")
    if isinstance(case, OperatorCase):
        types = [None if data is None else data.type.name for data in case.inputs]
        return _subject(case.op_type, case.domain, types)
    if isinstance(case, NumericCase):
        types = [None if value is None else ElementType.from_numpy(value.dtype).name for value in case.inputs]
        return _subject(case.op_type, "", types)
    from engine.testing.onnx_suite import CASES

    found = CASES.get(str(parameters.get("name")))
    return ("", "") if found is None or found.model is None else _of_graph(found.model.graph)


def _of_graph(graph: onnx.GraphProto) -> tuple[str, str]:
    if len(graph.node) != 1:
        return "", ""
    (node,) = graph.node
    kinds = {value.name: value.type for value in graph.input}
    types = [_type_of(kinds[name]) if name in kinds else None for name in node.input]
    return _subject(node.op_type, node.domain, types)


def _type_of(proto: onnx.TypeProto) -> str | None:
    if proto.HasField("tensor_type"):
        return ElementType.from_onnx(proto.tensor_type.elem_type).name
    return str(proto.WhichOneof("value")).removesuffix("_type")


def _subject(op_type: str, domain: str, types: Sequence[str | None]) -> tuple[str, str]:
    name = f"{domain}.{op_type}" if domain else op_type
    given = [(index, each) for index, each in enumerate(types) if each is not None]
    try:
        formals = onnx.defs.get_schema(op_type, domain=domain).inputs
    except onnx.defs.SchemaError:
        formals = []
    for index, each in given:
        if formals and len(formals[min(index, len(formals) - 1)].types) > 1:
            return name, each
    return (name, given[0][1]) if given else ("", "")
