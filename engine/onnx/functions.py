"""Model-local functions: checked, then inlined by the `onnx` package in the model without its weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import onnx
import onnx.inliner

from engine.errors import EngineError, GraphError, ModelReadError
from engine.onnx.upgrades import resolve_version
from engine.ops import CANONICAL_VERSIONS

OPSET_TAG: Final = "engine.opset"
"""Metadata key of a node whose operator's version is that of the opset in the value instead of the model's."""

_MAX_CALL_DEPTH: Final = 100
_MAX_NODES: Final = 200_000
_MAX_BYTES: Final = 256 << 20
_MAX_FACTOR: Final = 50
"""A model may grow to this many times its nodes and bytes when its functions are inlined, or to the numbers above."""
_MAX_FUNCTIONS: Final = 10_000
"""The inliner's own limit."""

_Key: TypeAlias = tuple[str, str, str]
_Functions: TypeAlias = dict[_Key, onnx.FunctionProto]


def inline_functions(model: onnx.ModelProto) -> bool:
    """Replace, in `model`, every call of a local function by the function's nodes; return whether opsets are mixed.

    A call's metadata is copied to its nodes unless these have the same keys. A function may be written for another
    opset than the model's: its nodes whose operators differ between the two have the key `OPSET_TAG`.

    Raises `ModelReadError` for functions that are defined twice, call themselves, or explode in nodes or bytes.
    """
    if not model.functions:
        return False
    functions = _by_key(model.functions)
    _check_expansion(model, functions)
    opsets = {_domain(entry.domain): entry.version for entry in model.opset_import}
    mixed = False
    for function in functions.values():
        mixed |= _align_opsets(function, opsets)
    for domain in opsets.keys() - {_domain(entry.domain) for entry in model.opset_import}:
        model.opset_import.add(domain=domain, version=opsets[domain])
    added = _specialise(model, functions)
    model.functions.extend(added)
    try:
        inlined = onnx.inliner.inline_local_functions(model)
    except Exception as e:  # the inliner raises any exception of its C++
        raise ModelReadError(f"the model's local functions cannot be inlined: {e}") from e
    model.CopyFrom(inlined)
    model.ClearField("functions")
    return mixed


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


def walk_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """`graph` and all bodies in it, at any depth."""
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from walk_graphs(body)


def walk_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """All nodes, including those of bodies."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from walk_nodes(graph.node)


def _by_key(functions: Iterable[onnx.FunctionProto]) -> _Functions:
    found: _Functions = {}
    for function in functions:
        key = (_domain(function.domain), function.name, function.overload)
        if key in found:
            raise ModelReadError(f"local function {_label(key)} is defined twice")
        found[key] = function
    return found


def _callee(node: onnx.NodeProto, functions: _Functions) -> _Key | None:
    key = (_domain(node.domain), node.op_type, node.overload)
    return key if key in functions else None


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _label(key: _Key) -> str:
    domain, name, overload = key
    return f"`{domain}.{name}{':' if overload else ''}{overload}`"


def _check_expansion(model: onnx.ModelProto, functions: _Functions) -> None:
    """Reject recursion, and functions that each call the next one twice, which inline to billions of nodes."""
    sizes: dict[_Key, tuple[int, int]] = {}
    path: list[_Key] = []
    bodies = [model.graph.node, *(function.node for function in functions.values())]
    written = sum(1 for body in bodies for _ in walk_nodes(body))
    most_nodes = max(_MAX_NODES, _MAX_FACTOR * written)
    most_bytes = max(_MAX_BYTES, _MAX_FACTOR * model.ByteSize())

    def size_of(nodes: Iterable[onnx.NodeProto]) -> tuple[int, int]:
        """The number of nodes and their bytes."""
        count = nbytes = 0
        for node in walk_nodes(nodes):
            callee = _callee(node, functions)
            # A node with bodies counts these bytes with its own, and again with theirs.
            more = (1, node.ByteSize()) if callee is None else size_of_function(callee)
            count, nbytes = count + more[0], nbytes + more[1]
            if count > most_nodes or nbytes > most_bytes:
                raise ModelReadError(
                    f"once its functions are inlined, the model has more than {most_nodes} nodes, or {most_bytes} "
                    "bytes without its weights; call fewer functions from each other, or inline them before export"
                )
        return count, nbytes

    def size_of_function(key: _Key) -> tuple[int, int]:
        if key not in sizes:
            if key in path:
                cycle = " -> ".join(map(_label, [*path[path.index(key) :], key]))
                raise GraphError(f"local functions call themselves: {cycle}")
            if len(path) >= _MAX_CALL_DEPTH:
                raise ModelReadError(f"local functions call each other more than {_MAX_CALL_DEPTH} deep")
            path.append(key)
            sizes[key] = size_of(functions[key].node)
            path.pop()
        return sizes[key]

    size_of(model.graph.node)


def _align_opsets(function: onnx.FunctionProto, opsets: dict[str, int]) -> bool:
    """Give `function` the model's opsets, tagging nodes whose operator's version differs; return whether any does."""
    own = {_domain(entry.domain): entry.version for entry in function.opset_import}
    for domain, version in own.items():
        opsets.setdefault(domain, version)
    changed = {domain for domain, version in own.items() if opsets[domain] != version and domain in CANONICAL_VERSIONS}
    for entry in function.opset_import:
        entry.version = opsets[_domain(entry.domain)]
    tagged = False
    if changed:
        for node in walk_nodes(function.node):
            domain = _domain(node.domain)
            if domain in changed and not _same_version(node.op_type, domain, own[domain], opsets[domain]):
                node.metadata_props.add(key=OPSET_TAG, value=str(own[domain]))
                tagged = True
    return tagged


def _same_version(op_type: str, domain: str, opset: int, other: int) -> bool:
    try:
        return resolve_version(op_type, domain, opset) == resolve_version(op_type, domain, other)
    except EngineError:
        return False  # reading the node itself reports the error


def _specialise(model: onnx.ModelProto, functions: _Functions) -> list[onnx.FunctionProto]:
    """Give each call with metadata its own copy of the function, whose nodes have the metadata; return the copies."""
    added: list[onnx.FunctionProto] = []
    pending: list[onnx.NodeProto] = list(walk_nodes(model.graph.node))
    while pending:
        call = pending.pop()
        callee = _callee(call, functions)
        if callee is None or not call.metadata_props:
            continue
        if len(functions) + len(added) >= _MAX_FUNCTIONS:
            raise ModelReadError(
                f"more than {_MAX_FUNCTIONS} calls of local functions have metadata; remove it, or inline the "
                "functions before export"
            )
        own = onnx.FunctionProto()
        own.CopyFrom(functions[callee])
        own.overload = call.overload = f"{callee[2]}\0{len(added)}"
        for node in walk_nodes(own.node):
            present = {entry.key for entry in node.metadata_props}
            node.metadata_props.extend(entry for entry in call.metadata_props if entry.key not in present)
        added.append(own)
        pending += walk_nodes(own.node)
    return added
