"""Graph protos and model-local functions: walks over nodes and bodies, and keys of functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from engine.errors import ModelReadError
from engine.startup.onnx_library import onnx

OPSET_TAG: Final = "engine.opset"
"""Metadata key of a node whose operator's version follows the opset in the value instead of the model's."""

MAX_CALL_DEPTH: Final = 100

FunctionKey: TypeAlias = tuple[str, str, str]
"""Domain, name and overload."""
Functions: TypeAlias = dict[FunctionKey, onnx.FunctionProto]


def describe(node: onnx.NodeProto) -> str:
    """The description of a node in messages."""
    if node.name:
        return f"{node.op_type} `{node.name}`"
    return f"{node.op_type} of output `{next(iter(node.output), '')}`"


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def subgraphs_of(attribute: onnx.AttributeProto) -> Sequence[onnx.GraphProto]:
    """The graphs that an attribute holds, as one or as a list."""
    return [attribute.g] if attribute.HasField("g") else attribute.graphs


def walk_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """`graph` and all bodies in it, at any depth."""
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from walk_graphs(body)


def walk_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """All nodes, including nodes of bodies."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from walk_nodes(graph.node)


def functions_by_key(functions: Iterable[onnx.FunctionProto]) -> Functions:
    """The functions by their keys. Raises `ModelReadError` if one is defined twice."""
    found: Functions = {}
    for function in functions:
        key = (onnx_domain(function.domain), function.name, function.overload)
        if key in found:
            raise ModelReadError(f"local function {label_of(key)} is defined twice")
        found[key] = function
    return found


def callee_of(node: onnx.NodeProto, functions: Functions) -> FunctionKey | None:
    """The key of the function that a node calls; None if it does not call one."""
    key = (onnx_domain(node.domain), node.op_type, node.overload)
    return key if key in functions else None


def onnx_domain(domain: str) -> str:
    """The domain; ONNX's own has two names."""
    return "" if domain == "ai.onnx" else domain


def label_of(key: FunctionKey) -> str:
    """The function as messages name it: "`domain.name:overload`"."""
    domain, name, overload = key
    return f"`{domain}.{name}{':' if overload else ''}{overload}`"
