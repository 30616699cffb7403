"""Pictures of models, as dot text or as SVG, without any system package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.drawing.layered_layout import Box, place
from engine.drawing.svg import CHARACTER_WIDTH, LINE_HEIGHT, LONGEST, document, legend, palette, text
from engine.drawing.table import printable
from engine.files import complete_file
from engine.ir import Constant, Model, Node
from engine.passes.settings import is_on

SHAPES = "ENGINE_VISUALIZE_TREE_OUTPUT_SHAPES"
TYPES = "ENGINE_VISUALIZE_TREE_OUTPUT_TYPES"
TIME = "time_ms"
"""The rt_info key whose value, in milliseconds, the picture shows for a node that `times` does not name."""


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """What a picture shows besides operators and names; `times` are milliseconds by friendly name."""

    shapes: bool = True
    types: bool = True
    rt_info: bool = False
    times: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def from_environment(**given: Any) -> PictureOptions:
        """Options from `ENGINE_VISUALIZE_TREE_OUTPUT_SHAPES` and `..._TYPES` (on by default), overridden by `given`."""
        values: dict[str, Any] = {"shapes": is_on(SHAPES, True), "types": is_on(TYPES, True)}
        values |= {name: value for name, value in given.items() if value is not None}
        return PictureOptions(**values)


def write_picture(model: Model, path: Path, options: PictureOptions | None = None) -> None:
    """Write `model` as SVG or dot, by the suffix of `path`."""
    options = options or PictureOptions.from_environment()
    drawing = to_dot(model, options) if path.suffix == ".dot" else to_svg(model, options)
    with complete_file(path) as file:
        file.write(drawing.encode())


def to_dot(model: Model, options: PictureOptions) -> str:
    """The model in Graphviz's language; bodies are clusters."""
    lines = ["digraph model {", '  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=10];']
    colours = _colours(model)
    _dot_graph(model, options, colours, lines, "n", "  ")
    return "\n".join([*lines, "}", ""])


def _dot_graph(
    model: Model, options: PictureOptions, colours: dict[str, str], lines: list[str], prefix: str, indent: str
) -> None:
    ids = {node: f"{prefix}{i}" for i, node in enumerate(model.ordered_nodes())}
    for node, name in ids.items():
        label = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in _label(node, options))
        lines.append(f'{indent}{name} [label="{label}", fillcolor="{_colour(node, colours)}"];')
        for attribute, body in node.bodies.items():
            lines.append(f'{indent}subgraph "cluster_{name}_{attribute}" {{ label="{attribute}";')
            _dot_graph(body, options, colours, lines, f"{name}_{attribute}_", indent + "  ")
            lines.append(f"{indent}}}")
        for source in node.input_values:
            if source is not None:
                tail = f' [taillabel="{source.index}"]' if source.node.num_outputs > 1 else ""
                lines.append(f"{indent}{ids[source.node]} -> {name}{tail};")


def to_svg(model: Model, options: PictureOptions) -> str:
    """The model as an SVG document: layered, inputs at the top. Bodies are drawn below the main graph."""
    colours = _colours(model)
    parts: list[str] = []
    width, y = 200.0, 0.0
    for title, graph in _graphs(model, model.name):
        parts.append(text(24, y + 20, title, 'font-weight="bold"'))
        shapes, graph_width, height = _svg_graph(graph, options, colours, y)
        parts += shapes
        width, y = max(width, graph_width), y + height
    width = max(width, 40 + 140 * len(colours))
    return document(width, y + 30, [*parts, *legend(colours, y)])


def _graphs(model: Model, title: str) -> Iterable[tuple[str, Model]]:
    yield title, model
    for node in model.ordered_nodes():
        for attribute, body in node.bodies.items():
            yield from _graphs(body, f"{title} / {node.friendly_name} / {attribute}")


def _svg_graph(
    model: Model, options: PictureOptions, colours: dict[str, str], top: float
) -> tuple[list[str], float, float]:
    nodes = model.ordered_nodes()
    index = {node: i for i, node in enumerate(nodes)}
    labels = [_label(node, options) for node in nodes]
    sizes = [(max(map(len, label)) * CHARACTER_WIDTH + 12, len(label) * LINE_HEIGHT + 8) for label in labels]
    edges = [(index[s.node], i) for i, node in enumerate(nodes) for s in node.input_values if s is not None]
    boxes = place(sizes, edges)
    parts = [_svg_edge(boxes[a], boxes[b], top) for a, b in edges]
    for node, label, box in zip(nodes, labels, boxes, strict=True):
        parts.append(_svg_box(label, box, _colour(node, colours), top))
    width = max((box.x + box.width for box in boxes), default=0) + 24
    height = max((box.y + box.height for box in boxes), default=0) + 24
    return parts, width, height


def _svg_edge(source: Box, target: Box, top: float) -> str:
    x1, y1 = source.x + source.width / 2, source.y + source.height + top
    x2, y2 = target.x + target.width / 2, target.y + top
    bend = (y2 - y1) / 2
    path = f"M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"
    return f'<path d="{path}" fill="none" stroke="#666" marker-end="url(#a)"/>'


def _svg_box(label: list[str], box: Box, colour: str, top: float) -> str:
    rows = "".join(text(box.x + 6, box.y + top + LINE_HEIGHT * (i + 0.9), line) for i, line in enumerate(label))
    return (
        f'<g><rect x="{box.x:.0f}" y="{box.y + top:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="4" '
        f'fill="{colour}" stroke="#444"/>{rows}</g>'
    )


def _label(node: Node, options: PictureOptions) -> list[str]:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    lines = [kind, node.friendly_name] if node.has_own_name else [kind]
    if isinstance(node, Constant) and node.output(0).shape.size() <= 4:
        lines.append(str(node.data.tolist()))
    for value_type in node.output_types:
        described = str(value_type)
        if not options.types and not options.shapes:
            break
        bracket = described.find("[") if described.endswith("]") else -1
        if bracket >= 0 and not options.shapes:
            described = described[:bracket]
        elif bracket >= 0 and not options.types:
            described = described[bracket:]
        lines.append(described)
    info = node.annotations
    milliseconds = options.times.get(node.friendly_name, info.get(TIME)) if node.output_types else None
    if milliseconds is not None:
        lines.append(f"{milliseconds:.3f} ms")
    if options.rt_info:
        lines += [f"{key}: {value}" for key, value in info.items() if key != TIME]
    return [printable(line, LONGEST) for line in lines]


def _colours(model: Model) -> dict[str, str]:
    """A colour for each affinity in the model, in order of appearance."""
    return palette(
        str(node.annotations["affinity"])
        for _, graph in _graphs(model, "")
        for node in graph.ordered_nodes()
        if "affinity" in node.annotations
    )


def _colour(node: Node, colours: dict[str, str]) -> str:
    affinity = node.annotations.get("affinity")
    if affinity is not None:
        return colours[str(affinity)]
    return {"Parameter": "#e8f4e8", "Result": "#f4e8e8", "Constant": "#f0f0f0"}.get(node.op_type, "#ffffff")
