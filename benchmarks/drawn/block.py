"""Draws blocks of plausible sizes: each takes 0.05 to 30 ms on one thread of a nominal machine."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Final

import onnx

from drawn import attention, convolutions, maps, outputs, residual, rows
from drawn.builder import BlockBuilder
from drawn.choices import Choices
from drawn.kinds import KINDS
from engine.testing.networks import SeededNetwork, floating_point_operations
from engine.testing.networks.arithmetic import value_shapes

__all__ = ["Block", "Cost", "draw_block", "kind_of"]

_MODULES: Final = (attention, convolutions, maps, outputs, residual, rows)  # imported for their kinds
_NOMINAL_OPERATIONS, _NOMINAL_BYTES = 80e9, 12e9
_NODE_SECONDS: Final = 2e-6
_SHORTEST, _LONGEST = 0.05e-3, 30e-3
_ATTEMPTS: Final = 300


@dataclass(frozen=True, slots=True)
class Cost:
    """What a block costs at least."""

    operations: int
    """Multiplications and additions of the direct algorithms."""
    bytes: int
    """Of the inputs, the weights and the outputs, each once."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A block, its class of steps, and what tells how to build it."""

    index: int
    kind: str
    description: str
    cost: Cost
    network: SeededNetwork

    @property
    def name(self) -> str:
        """For files and tables: the index and the class."""
        letters = "".join(letter if letter.isalnum() else "_" for letter in self.kind.lower())
        return f"{self.index:04}_{letters}"


def kind_of(seed: int, index: int) -> str:
    """The class of a block: as many consecutive blocks as there are classes have each class once."""
    lap, place = divmod(index, len(KINDS))
    return Choices(seed, lap).shuffled(sorted(KINDS))[place]


def draw_block(seed: int, index: int) -> Block:
    """The block of this index, the same whatever others are drawn."""
    kind = kind_of(seed, index)
    for attempt in range(_ATTEMPTS):
        sketch, description, cost = _built(seed, index, attempt, kind, is_sketch=True)
        if _SHORTEST <= _nominal_seconds(sketch.model, cost) <= _LONGEST:
            network, _, _ = _built(seed, index, attempt, kind, is_sketch=False)
            return Block(index, kind, description, cost, network)
    raise RuntimeError(f"block {index} of seed {seed}: no {kind} of {_ATTEMPTS} takes {_SHORTEST} to {_LONGEST} s")


def _built(seed: int, index: int, attempt: int, kind: str, *, is_sketch: bool) -> tuple[SeededNetwork, str, Cost]:
    choices = Choices(seed, index, attempt, zlib.crc32(kind.encode()))
    g = BlockBuilder("block", index, choices, is_sketch=is_sketch)
    outputs, description = KINDS[kind](g)
    network = g.finish(*outputs)
    return network, description, _cost(network.model)


def _cost(model: onnx.ModelProto) -> Cost:
    shapes, graph = value_shapes(model), model.graph
    read = {name for node in graph.node for name in node.input}
    names = [*(info.name for info in (*graph.input, *graph.output)), *(each.name for each in graph.initializer)]
    large = {name for name in names if name in read or name in {info.name for info in graph.output}}
    return Cost(floating_point_operations(model), 4 * sum(math.prod(shapes[name]) for name in large))


def _nominal_seconds(model: onnx.ModelProto, cost: Cost) -> float:
    between = 4 * sum(math.prod(shape) for shape in value_shapes(model).values())
    overhead = _NODE_SECONDS * len(model.graph.node)
    return max(cost.operations / _NOMINAL_OPERATIONS, (cost.bytes + between) / 2 / _NOMINAL_BYTES) + overhead
