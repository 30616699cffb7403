"""Positions for the nodes of a directed acyclic graph: layers by longest path, order within a layer by barycenter.

After Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures" (1981),
without their dummy nodes: edges are drawn as curves over the layers between.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.startup import dataclass

_SWEEPS = 4
GAP_X = 24
GAP_Y = 44


@dataclass(frozen=True, slots=True)
class Box:
    """A placed node: its upper left corner and size, in pixels."""

    x: float
    y: float
    width: float
    height: float


def place(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> list[Box]:
    """Boxes for nodes of `sizes` (width, height), numbered in topological order. Near-linear in nodes and edges."""
    parents: list[list[int]] = [[] for _ in sizes]
    children: list[list[int]] = [[] for _ in sizes]
    for source, target in edges:
        parents[target].append(source)
        children[source].append(target)
    layer = _layers(parents, children)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node, depth in enumerate(layer):
        rows[depth].append(node)
    _order(rows, parents, children)
    return _coordinates(rows, sizes, parents)


def _layers(parents: list[list[int]], children: list[list[int]]) -> list[int]:
    layer = [0] * len(parents)
    for node, above in enumerate(parents):
        layer[node] = max((layer[p] + 1 for p in above), default=0)
    for node in reversed(range(len(parents))):
        # Sources such as constants are placed in the layer just above their readers.
        if not parents[node] and children[node]:
            layer[node] = max(0, min(layer[c] for c in children[node]) - 1)
    return layer


def _order(rows: list[list[int]], parents: list[list[int]], children: list[list[int]]) -> None:
    position = [0.0] * len(parents)
    for row in rows:
        for place_in_row, node in enumerate(row):
            position[node] = place_in_row
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            neighbours = parents if down else children
            weight = {
                node: sum(position[n] for n in neighbours[node]) / len(neighbours[node])
                if neighbours[node]
                else position[node]
                for node in row
            }
            row.sort(key=weight.__getitem__)
            for place_in_row, node in enumerate(row):
                position[node] = place_in_row


def _coordinates(rows: list[list[int]], sizes: Sequence[tuple[float, float]], parents: list[list[int]]) -> list[Box]:
    boxes = [Box(0, 0, w, h) for w, h in sizes]
    y = float(GAP_Y)
    for row in rows:
        height = max((sizes[node][1] for node in row), default=0)
        x = float(GAP_X)
        for node in row:
            width = sizes[node][0]
            centers = [boxes[p].x + boxes[p].width / 2 for p in parents[node]]
            wanted = sum(centers) / len(centers) - width / 2 if centers else x
            x = max(x, wanted)
            boxes[node] = Box(x, y, width, sizes[node][1])
            x += width + GAP_X
        y += height + GAP_Y
    return boxes
