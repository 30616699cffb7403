"""Checks of calls of model-local functions, and of how large a model becomes when they are inlined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from engine.errors import GraphError, ModelReadError
from engine.onnx.functions import describe, onnx_domain, subgraphs, subgraphs_of, walk_nodes
from engine.startup.onnx_library import onnx

_MAX_NODES: Final = 200_000
_MAX_BYTES: Final = 256 << 20
_MAX_FACTOR: Final = 50
"""A model may grow to this many times its nodes and bytes when its functions are inlined, or to the numbers above."""


class Limits:
    """The nodes, calls and bytes that a model may have once its functions are inlined, and those counted so far."""

    __slots__ = ("_bytes", "_most_bytes", "_most_nodes", "_nodes")

    def __init__(self, model: onnx.ModelProto) -> None:
        bodies = [model.graph.node, *(function.node for function in model.functions)]
        written = sum(1 for body in bodies for _ in walk_nodes(body))
        self._most_nodes = max(_MAX_NODES, _MAX_FACTOR * written)
        self._most_bytes = max(_MAX_BYTES, _MAX_FACTOR * model.ByteSize())
        self._nodes = self._bytes = 0

    def check(self, nodes: int, nbytes: int) -> None:
        """Raise `ModelReadError` if this is too much."""
        if nodes > self._most_nodes or nbytes > self._most_bytes:
            raise ModelReadError(
                f"once its functions are inlined, the model has more than {self._most_nodes} nodes and calls, or "
                f"{self._most_bytes} bytes without its weights; call fewer functions from each other, or inline them "
                "before export"
            )

    def count(self, node: onnx.NodeProto) -> None:
        """Count a node that was made, with the nodes of its bodies, or a call."""
        self._nodes += 1 + sum(1 for body in subgraphs(node) for _ in walk_nodes(body.node))
        self._bytes += node.ByteSize()
        self.check(self._nodes, self._bytes)


def check_signature(call: onnx.NodeProto, function: onnx.FunctionProto, label: str) -> None:
    """Raise `ModelReadError` if the call has more inputs or outputs than the function; trailing ones may be missing."""
    for what, actual, formal in (("inputs", call.input, function.input), ("outputs", call.output, function.output)):
        if len(actual) > len(formal):
            raise ModelReadError(f"{describe(call)} has {len(actual)} {what}; local function {label} has {len(formal)}")


def check_function(function: onnx.FunctionProto, label: str) -> None:
    """Raise `GraphError` if two inputs of the function have one name."""
    if len(set(function.input)) != len(function.input):
        raise GraphError(f"local function {label} has two inputs of one name: {', '.join(function.input)}")


def check_attributes(
    call: onnx.NodeProto, function: onnx.FunctionProto, given: Mapping[str, onnx.AttributeProto], label: str
) -> None:
    """Raise `ModelReadError` for an attribute that the function does not have. `given`: the call's."""
    declared = {*function.attribute, *(default.name for default in function.attribute_proto)}
    unknown = [name for name in given if name not in declared and not name.startswith("__")]
    if unknown and (unknown := [name for name in unknown if not _refers(function.node, name)]):
        known = ", ".join(f"`{name}`" for name in sorted(declared)) or "none"
        raise ModelReadError(
            f"{describe(call)}: local function {label} has no attribute `{unknown[0]}`; it has {known}"
        )


def _refers(nodes: Iterable[onnx.NodeProto], name: str) -> bool:
    """Whether a node takes an attribute from the function's attribute `name`, which old files do not declare."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.ref_attr_name == name or any(_refers(body.node, name) for body in subgraphs_of(attribute)):
                return True
    return False


def is_required(node: onnx.NodeProto, name: str, opsets: Mapping[str, int]) -> bool:
    """Whether the node's operator has no default of an attribute."""
    domain = onnx_domain(node.domain)
    if node.op_type == "Constant" and not domain:
        return True
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return False
    return name in schema.attributes and bool(schema.attributes[name].required)
