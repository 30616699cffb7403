"""`CommonSubexpressionSharing`, which replaces equal computations by one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from engine.ir import Constant, Model, Node
from engine.ops import find_op
from engine.passes.base import ModelPass
from engine.passes.fusion import feeds_result
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_node

_SMALL_BYTES = 4096


class CommonSubexpressionSharing(ModelPass):
    """Joins operations of the same operator, attributes and inputs, and equal small constants.

    Constants above 4 KiB are joined only if they share memory: comparing all weights would read every mapped file.
    Random operators and operations with bodies are not joined. A network output keeps its own node if joining would
    lose its name.
    """

    def run_on_model(self, model: Model) -> bool:
        """Linear in the number of nodes; True if anything was joined."""
        first: dict[Hashable, Node] = {}
        joined: dict[Node, list[Node]] = {}
        alone: set[Node] = set()  # visited, but not in `first`
        changed = False
        for node in model.ordered_nodes():
            changed |= self.run_on_bodies(node)
            if _is_alone(node):
                alone.add(node)
                continue
            kept = self._first(node, first)
            if kept is node or _feeds_result(node):
                continue
            for reader in _only_readers(kept):
                if reader in alone:  # no longer
                    alone.remove(reader)
                    self._first(reader, first)
            joined.setdefault(kept, []).append(node)
            replace_node(node, kept)
            self.rewrites += 1
            changed = True
        for kept, others in joined.items():  # once for each: the names of all others may be merged
            copy_runtime_info([kept, *others], kept)
        return changed

    def _first(self, node: Node, first: dict[Hashable, Node]) -> Node:
        """The first node that is equal to `node`; itself if there is none, or if it is not joined."""
        key = _key(node)
        return node if key is None or self.transformation_callback(node) else first.setdefault(key, node)


def _is_alone(node: Node) -> bool:
    """Whether no other node reads one of the inputs, so that none is equal."""
    for source in node.sources:  # noqa: SIM110 - a generator costs five times as much
        if source is not None and source.num_consumers == 1:
            return True
    return False


def _only_readers(node: Node) -> list[Node]:
    """The readers of outputs that have one reader; other outputs' readers are not alone because of this node."""
    return [target.node for output in node.outputs if output.num_consumers == 1 for target in output.target_inputs]


def _feeds_result(node: Node) -> bool:
    return any(map(feeds_result, node.outputs))


def _key(node: Node) -> Hashable | None:
    if isinstance(node, Constant):
        return _constant_key(node)
    op = find_op(node.op_type, node.domain)
    if op is None or not op.is_deterministic or node.bodies:
        return None
    attributes = tuple(sorted([(name, _hashable(value)) for name, value in node.attributes.items()]))
    sources = tuple([None if s is None else (id(s.node), s.index) for s in node.sources])
    affinity = node.annotations.get("affinity")
    return node.domain, node.op_type, node.num_outputs, attributes, sources, affinity


def _constant_key(node: Constant) -> Hashable:
    value_type = node.output(0).type
    if node.byte_size > _SMALL_BYTES:
        if not node.is_loaded:
            return id(node)
        interface = node.data.__array_interface__
        return "Constant", value_type, interface["data"][0], interface["strides"]
    return "Constant", value_type, _hashable(node.data)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        content = tuple(value.ravel().tolist()) if value.dtype == object else np.ascontiguousarray(value).tobytes()
        return value.dtype.str, value.shape, content
    if isinstance(value, float):
        return value.hex()
    return (type(value).__name__, value) if isinstance(value, Hashable) else id(value)
