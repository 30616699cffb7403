"""`NodeSegment`: a segment of one node, by whose name it is reported."""

from __future__ import annotations

from engine.ir import Node
from engine_cpu.segments.segment import Segment


class NodeSegment(Segment):
    """Base of the segments that run one node and name it in errors and profiles."""

    def __init__(self, node: Node) -> None:
        self.name, self.op_type = node.friendly_name, node.op_type
        self.title = str(node)
