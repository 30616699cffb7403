"""The kinds of blocks, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from drawn.builder import BlockBuilder

Made: TypeAlias = tuple[list[str], str]
"""The outputs of a block, and its description."""
Make: TypeAlias = Callable[[BlockBuilder], Made]

KINDS: dict[str, Make] = {}
"""The functions that add a block to a builder, by the name of their class of steps."""


def kind(name: str) -> Callable[[Make], Make]:
    """Register a function under the name of its class."""

    def register(make: Make) -> Make:
        if name in KINDS:
            raise ValueError(f"two kinds of blocks are named {name}")
        KINDS[name] = make
        return make

    return register


def by(*shape: int) -> str:
    """A shape in a description."""
    return "x".join(map(str, shape))
