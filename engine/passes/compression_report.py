"""The result of `compress_weights`: the model, and a report of its layers."""

from __future__ import annotations

from typing import Final

from engine.drawing.table import byte_count, table
from engine.ir import ElementType, Model
from engine.startup import dataclass

_MAX_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class CompressedLayer:
    """A matrix that was compressed.

    Attributes:
        nodes: the names of the nodes that read it.
        shape: [K, N], where K is the axis along which products sum.
        element_type: the codes' type.
        block_size: the number of elements along K that share a scale.
        bytes_before, bytes_after: of the matrix, and of its replacement.
        relative_error: the Frobenius norm of the error, relative to the matrix's.
        largest_error: the largest absolute error of an element.
    """

    nodes: tuple[str, ...]
    shape: tuple[int, int]
    element_type: ElementType
    block_size: int
    bytes_before: int
    bytes_after: int
    relative_error: float
    largest_error: float

    @property
    def name(self) -> str:
        """The name of the first node that reads the matrix."""
        return self.nodes[0]


@dataclass(frozen=True, slots=True)
class SkippedLayer:
    """A matrix that stays as it is, and why."""

    nodes: tuple[str, ...]
    reason: str

    @property
    def name(self) -> str:
        """The name of the first node that reads the matrix."""
        return self.nodes[0]


@dataclass(frozen=True, slots=True)
class CompressedModel:
    """The result of `compress_weights`. Its text is a table of the layers.

    Attributes:
        model: the compressed model.
        layers: the compressed matrices, in execution order.
        skipped: the other matrices.
        bytes_before, bytes_after: of all constants of the model.
    """

    model: Model
    layers: tuple[CompressedLayer, ...]
    skipped: tuple[SkippedLayer, ...]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        header = ("LAYER", "MATRIX", "TYPE", "BLOCK", "BEFORE", "AFTER", "RELATIVE ERROR", "LARGEST ERROR")
        rows = [
            (
                *(_short(layer.name), "{}x{}".format(*layer.shape), layer.element_type, layer.block_size),
                *(byte_count(layer.bytes_before), byte_count(layer.bytes_after)),
                *(f"{layer.relative_error:.2e}", f"{layer.largest_error:.2e}"),
            )
            for layer in self.layers
        ]
        lines = table(rows, header, right=(4, 5, 6, 7))
        lines += [f"not compressed: {_short(layer.name)}: {layer.reason}" for layer in self.skipped]
        if not self.layers and not self.skipped:
            return "no MatMul or Gemm of the model has a constant matrix of real numbers"
        lines.append(
            f"{len(self.layers)} of {len(self.layers) + len(self.skipped)} matrices compressed; all weights: "
            f"{byte_count(self.bytes_before)} before, {byte_count(self.bytes_after)} after"
        )
        return "\n".join(lines)


def _short(name: str) -> str:
    return name if len(name) <= _MAX_CHARACTERS else f"...{name[3 - _MAX_CHARACTERS :]}"
