"""`inline_functions`: model-local functions become the nodes that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.errors import EngineError, GraphError, ModelReadError
from engine.onnx.function_calls import Limits
from engine.onnx.functions import (
    MAX_CALL_DEPTH,
    OPSET_TAG,
    FunctionKey,
    Functions,
    callee_of,
    functions_by_key,
    label_of,
    onnx_domain,
    subgraphs_of,
    walk_nodes,
)
from engine.onnx.inliner import Inliner
from engine.onnx.opsets import resolve_version
from engine.ops import CANONICAL_VERSIONS
from engine.startup.onnx_library import onnx

__all__ = ["inline_functions"]


def inline_functions(model: onnx.ModelProto) -> bool:
    """Replace, in `model`, every call of a local function by the function's nodes; return whether opsets are mixed.

    Attributes that a call does not give have the function's defaults; references to attributes without a value are
    left out, as the specification says. A call's metadata is copied to its nodes unless these have the same keys. A
    function may be written for another opset than the model's: its nodes whose operators differ between the two have
    the key `OPSET_TAG`.

    Raises `ModelReadError` for functions that are defined twice or explode in nodes or bytes, and for calls that do not
    fit; `GraphError` for functions that call themselves.
    """
    if not model.functions:
        return False
    functions = functions_by_key(model.functions)
    limits = Limits(model)
    _check_expansion(model, functions, limits)
    opsets = {onnx_domain(entry.domain): entry.version for entry in model.opset_import}
    stated = frozenset(opsets)
    versions: dict[FunctionKey, Mapping[str, int]] = {}
    mixed = False
    for key, function in functions.items():
        versions[key] = {onnx_domain(entry.domain): entry.version for entry in function.opset_import}
        mixed |= _tag_versions(function, versions[key], opsets)
    for domain in opsets.keys() - stated:
        model.opset_import.add(domain=domain, version=opsets[domain])
    Inliner(functions, versions, model.graph, limits).run(model.graph)
    model.ClearField("functions")
    return mixed


def _tag_versions(function: onnx.FunctionProto, own: Mapping[str, int], opsets: dict[str, int]) -> bool:
    """Tag the nodes whose operator's version differs from that in `opsets`, the model's; return whether any does.

    Domains that the model does not import get the function's version.
    """
    for domain, version in own.items():
        opsets.setdefault(domain, version)
    changed = {domain for domain, version in own.items() if opsets[domain] != version and domain in CANONICAL_VERSIONS}
    if not changed:
        return False
    tagged = False
    bodies = [body.node for default in function.attribute_proto for body in subgraphs_of(default)]
    for nodes in (function.node, *bodies):
        for node in walk_nodes(nodes):
            domain = onnx_domain(node.domain)
            if domain in changed and not _same_version(node.op_type, domain, own[domain], opsets[domain]):
                node.metadata_props.add(key=OPSET_TAG, value=str(own[domain]))
                tagged = True
    return tagged


def _same_version(op_type: str, domain: str, opset: int, other: int) -> bool:
    try:
        return resolve_version(op_type, domain, opset) == resolve_version(op_type, domain, other)
    except EngineError:
        return False  # reading the node itself reports the error


def _check_expansion(model: onnx.ModelProto, functions: Functions, limits: Limits) -> None:
    """Reject recursion, and functions that each call the next one twice, which inline to billions of nodes."""
    sizes: dict[FunctionKey, tuple[int, int]] = {}
    path: list[FunctionKey] = []

    def size_of(nodes: Iterable[onnx.NodeProto]) -> tuple[int, int]:
        """The number of nodes and their bytes."""
        count = nbytes = 0
        for node in walk_nodes(nodes):
            callee = callee_of(node, functions)
            # A node with bodies counts these bytes with its own, and again with theirs.
            more = (0, 0) if callee is None else size_of_function(callee)
            count, nbytes = count + 1 + more[0], nbytes + node.ByteSize() + more[1]
            limits.check(count, nbytes)
        return count, nbytes

    def size_of_function(key: FunctionKey) -> tuple[int, int]:
        if key not in sizes:
            if key in path:
                cycle = " -> ".join(map(label_of, [*path[path.index(key) :], key]))
                raise GraphError(f"local functions call themselves: {cycle}")
            if len(path) >= MAX_CALL_DEPTH:
                raise ModelReadError(f"local functions call each other more than {MAX_CALL_DEPTH} deep")
            path.append(key)
            sizes[key] = size_of(functions[key].node)
            path.pop()
        return sizes[key]

    size_of(model.graph.node)
