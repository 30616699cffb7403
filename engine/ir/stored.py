"""How many bytes of constants a model really has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.ir.leaves import Constant
from engine.ir.model import Model
from engine.ir.sizes import joined_bytes

_KINDS: Final = (("", "Constant"),)


def stored_bytes(model: Model) -> int:
    """The bytes in memory or files of a model's constants, bodies included; shared bytes count once.

    Constants that are computed when they are read, such as sparse tensors, do not count, except constants of packed
    types. Linear in the number of nodes.
    """
    spans: list[tuple[int, int]] = []
    packed = 0
    for constant in _constants(model):
        span = constant.memory_span()
        if span is not None:
            spans.append(span)
        elif constant.element_type.is_packed:
            packed += constant.byte_size
    return packed + joined_bytes(spans)


def _constants(model: Model) -> Iterator[Constant]:
    for node in model.nodes_of(_KINDS):
        if isinstance(node, Constant):
            yield node
        elif node.attributes:
            for body in node.bodies.values():
                yield from _constants(body)
