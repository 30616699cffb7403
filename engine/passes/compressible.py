"""The matrices of a model that can be compressed: the constant operands of products, and tables of embeddings."""

from __future__ import annotations

from collections.abc import Iterator

from engine.ir import Constant, Input, Model, Node
from engine.ops.gather import GatherSpec
from engine.ops.matmul import GemmSpec
from engine.ops.transpose import TransposeSpec
from engine.startup import dataclass

_MATRIX = 2
_PASSING = ("Transpose", "Cast", "Identity")
"""Operators that may stand between a constant and a product."""


@dataclass(frozen=True, slots=True)
class Use:
    """One way in which a node reads a constant.

    Attributes:
        node: the product or look-up.
        source: the input that reads the constant: an input of the node, or of a Transpose, Cast or Identity before it.
        axis: the axis of the constant along which a product sums, or the last axis of a table.
    """

    node: Node
    source: Input
    axis: int

    @property
    def is_embedding(self) -> bool:
        """Whether the node looks up rows of a table."""
        return self.node.op_type == "Gather"


@dataclass(frozen=True, slots=True)
class CompressibleMatrix:
    """A constant of real numbers and the nodes that read it as weights."""

    constant: Constant
    uses: tuple[Use, ...]

    @property
    def axis(self) -> int | None:
        """The axis of all uses; None if they differ."""
        axes = {use.axis for use in self.uses}
        return axes.pop() if len(axes) == 1 else None

    @property
    def has_other_readers(self) -> bool:
        """Whether another node reads the constant, which therefore stays in the model."""
        readers = set(self.constant.output(0).target_inputs)
        return bool(readers - {use.source for use in self.uses})


def candidates(model: Model) -> list[CompressibleMatrix]:
    """The candidates of a model and of the bodies in it, in the order in which their nodes run."""
    found: dict[Constant, list[Use]] = {}
    for constant, use in _uses(model):
        found.setdefault(constant, []).append(use)
    return [CompressibleMatrix(constant, tuple(uses)) for constant, uses in found.items()]


def _uses(model: Model) -> Iterator[tuple[Constant, Use]]:
    for node in model.ordered_nodes():
        for body in node.bodies.values():
            yield from _uses(body)
        if node.domain:
            continue
        if node.op_type in ("MatMul", "Gemm"):
            yield from _of_product(node)
        elif node.op_type == "Gather":
            yield from _of_look_up(node)


def _of_product(node: Node) -> Iterator[tuple[Constant, Use]]:
    source = node.input(1)
    rank = source.shape.rank
    if rank.is_dynamic or rank.get_length() < _MATRIX:
        return
    axis = rank.get_length() - 2
    if node.op_type == "Gemm" and GemmSpec.of(node).transB:
        axis = 1
    while (before := source.source_output.node).op_type in _PASSING and not before.domain:
        if not before.output(0).element_type.is_real:
            return
        if before.op_type == "Transpose":
            axis = TransposeSpec.of(before).order(rank.get_length())[axis]
        source = before.input(0)
    if isinstance(before, Constant) and before.element_type.is_real:
        yield before, Use(node, source, axis)


def _of_look_up(node: Node) -> Iterator[tuple[Constant, Use]]:
    table = node.input_value(0).node
    if not isinstance(table, Constant) or not table.element_type.is_real or len(table.shape) != _MATRIX:
        return
    if GatherSpec.of(node).axis == 0:
        yield table, Use(node, node.input(0), 1)
