"""Makes graphs as plain data from models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np

from engine.drawing.graph import Graph, GraphEdge, GraphNode, Role
from engine.drawing.graph_page import scope_of
from engine.drawing.svg import MAX_CHARACTERS
from engine.drawing.table import printable
from engine.ir import Constant, Model, Node, TensorType
from engine.ir.single_floats import shown_attribute
from engine.startup import dataclass

TIME: Final = "time_ms"
"""The rt_info key whose value, in milliseconds, a graph has for a node that `times` does not name."""
AFFINITY: Final = "affinity"
_ROLES: Final[Mapping[str, Role]] = {"Parameter": "input", "Result": "output", "Constant": "constant"}
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
"""PyTorch's exporter gives nodes flat names, and here, as Python writes a list, the modules that made each of them, and
the name in the last one: `['', 'encoder', 'encoder.layers.0', 'linear']`."""
_QUOTED: Final = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"")
_LIST: Final = re.compile(rf"\[(?:(?:{_QUOTED.pattern})(?:, |(?=\])))*\]")
_FEW: Final = 4
"""Constants of at most this many elements are shown."""


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """The details that a graph shows of nodes besides operators and names.

    Attributes:
        shapes, types, rt_info: whether static pictures show them.
        times: milliseconds by friendly name; nodes in bodies are named as in profiles: "loop/add" for `add` in a body
            of `loop`.
        notes: more details by friendly name, such as the kernels that ran.
    """

    shapes: bool = True
    types: bool = True
    rt_info: bool = False
    times: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def model_graph(model: Model, options: GraphOptions | None = None) -> Graph:
    """The graph of a model and of its bodies. Nodes have the device of their `affinity`, if they have one."""
    builder = _Builder(options or GraphOptions())
    builder.add(model, (), "", ())
    return Graph(model.name, tuple(builder.nodes), tuple(builder.edges))


class _Builder:
    """Collects the nodes of a model and of the bodies in it."""

    def __init__(self, options: GraphOptions) -> None:
        self._options = options
        self.nodes: list[GraphNode] = []
        self.edges: list[GraphEdge] = []

    def add(self, model: Model, body: tuple[str, ...], owner: str, around: tuple[str, ...]) -> list[int]:
        """Add a model, and return the positions of its nodes that read nothing.

        `owner` is before names in profiles, `around` are the groups of the node whose body it is.
        """
        position: dict[Node, int] = {}
        sources = []
        for node in model.ordered_nodes():
            position[node] = number = len(self.nodes)
            groups = (*around, *groups_of_node(node))
            self.nodes.append(self._node(node, body, owner, groups))
            values = [value for value in node.input_values if value is not None]
            self.edges += [GraphEdge(position[value.node], number, value.index) for value in values]
            if not values and not isinstance(node, Constant):
                sources.append(number)
            for attribute, inner in node.bodies.items():
                name = f"{printable(node.friendly_name)} / {attribute}"
                begun = self.add(inner, (*body, name), f"{owner}{node.friendly_name}/", (*groups, name))
                self.edges += [GraphEdge(number, each, is_link=True) for each in begun]
        return sources

    def _node(self, node: Node, body: tuple[str, ...], owner: str, groups: tuple[str, ...]) -> GraphNode:
        info, options, profiled = node.annotations, self._options, owner + node.friendly_name
        is_own = bool(node.output_types)
        milliseconds = options.times.get(profiled, info.get(TIME)) if is_own else None
        types = tuple(map(str, node.output_types))
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        first = next(iter(node.output_types), None)
        return GraphNode(
            name=node.friendly_name,
            kind=kind,
            role=_ROLES.get(node.op_type, "operation") if not node.domain else "operation",
            lines=self._lines(node, kind, types, milliseconds),
            types=types,
            precision=str(first.element_type) if isinstance(first, TensorType) else "",
            body=body,
            device=str(info.get(AFFINITY, "")),
            milliseconds=milliseconds if isinstance(milliseconds, (int, float)) else None,
            details=_details(node) | dict(options.notes.get(profiled, {}) if is_own else {}),
            groups=groups,
        )

    def _lines(self, node: Node, kind: str, types: Sequence[str], milliseconds: Any) -> tuple[str, ...]:
        options = self._options
        lines = [kind, node.friendly_name] if node.has_own_name else [kind]
        if isinstance(node, Constant) and node.output(0).shape.size() <= _FEW:
            lines.append(str(node.data.tolist()))
        for described in types if options.types or options.shapes else ():
            bracket = described.find("[") if described.endswith("]") else -1
            if bracket >= 0 and not options.shapes:
                described = described[:bracket]
            elif bracket >= 0 and not options.types:
                described = described[bracket:]
            lines.append(described)
        if isinstance(milliseconds, (int, float)):
            lines.append(f"{milliseconds:.3f} ms")
        if options.rt_info:
            lines += [f"{key}: {value}" for key, value in node.annotations.items() if key != TIME]
        return tuple(printable(line, MAX_CHARACTERS) for line in lines)


def groups_of_node(node: Node) -> tuple[str, ...]:
    """The groups around a node, outermost first: from the exporter's metadata, or otherwise from its name."""
    metadata = node.annotations.get("metadata")
    scopes = metadata.get(_SCOPES) if isinstance(metadata, Mapping) else None
    if isinstance(scopes, str) and _LIST.fullmatch(scopes):
        names = [single or double for single, double in _QUOTED.findall(scopes)]
        return tuple(filter(None, names[-2].split("."))) if len(names) > 1 else ()  # the others are beginnings of it
    return scope_of(node.friendly_name)


def _details(node: Node) -> dict[str, str]:
    """Attributes and annotations as text."""
    attributes = {k: shown_attribute(v) for k, v in node.attributes.items() if not isinstance(v, Model)}
    found = {key: _shown(value) for key, value in attributes.items()}
    if isinstance(node, Constant):
        found = {"value": _shown(node.data)} if node.output(0).shape.size() <= _FEW else {}
    return found | {f"rt_info {key}": _shown(value) for key, value in node.annotations.items() if key != TIME}


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(value.tolist()) if value.size <= 16 else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)
