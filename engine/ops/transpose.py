"""Transpose, DepthToSpace and SpaceToDepth: specs and the type of Transpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.ir import Node, PartialShape, TensorType, ValueType
from engine.ops.axes import Axes, AxisMapping, axis_names, declare_axes, maps_axes, rank_of_value
from engine.ops.registry import get_op, infers
from engine.ops.rules import check_inputs, tensor_type
from engine.ops.spec import OperatorSpec, check_choice, rank_of, refuse, refuse_rank, specifies
from engine.ops.traits import Moves, declare
from engine.startup import dataclass

declare("Transpose", "DepthToSpace", "SpaceToDepth", moves=Moves.PERMUTATION, keeps_zero=True, vectorized=True)
declare_axes("DepthToSpace", "SpaceToDepth", axes="N C H W -> N C' H' W'")


@specifies("Transpose")
@dataclass(frozen=True, slots=True, kw_only=True)
class TransposeSpec(OperatorSpec):
    """Transpose (ONNX Transpose-25). Axis i of the result is axis `perm[i]` of the input.

    `perm` is None if all axes are reversed and the rank is unknown.
    """

    perm: tuple[int, ...] | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        rank, perm = rank_of(node, 0), given["perm"]
        if perm is None:
            given["perm"] = None if rank is None else tuple(range(rank))[::-1]
            return
        if sorted(perm) != list(range(len(perm) if rank is None else rank)):
            axes = "axes" if rank is None else f"{rank} axes of input 0"
            refuse(node, "perm", list(perm), f"a permutation of the {axes}, counted from 0")
        given["perm"] = tuple(perm)

    def order(self, rank: int) -> tuple[int, ...]:
        """`perm` for an input of `rank` dimensions."""
        return tuple(range(rank))[::-1] if self.perm is None else self.perm


@infers("Transpose")
def _infer_transpose(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Transpose"))
    data, perm = tensor_type(node, 0), TransposeSpec.of(node).perm
    if data.shape.rank.is_dynamic:
        return (TensorType(data.element_type, PartialShape.dynamic(None if perm is None else len(perm))),)
    assert perm is not None
    return (TensorType(data.element_type, PartialShape([data.shape[axis] for axis in perm])),)


@dataclass(frozen=True, slots=True)
class BlockLengths:
    """A DepthToSpace or SpaceToDepth for one shape: reshape to `split`, then transpose by `order`."""

    split: tuple[int, ...]
    order: tuple[int, ...]


@specifies("DepthToSpace", "SpaceToDepth")
@dataclass(frozen=True, slots=True, kw_only=True)
class DepthToSpaceSpec(OperatorSpec):
    """DepthToSpace, or its inverse SpaceToDepth, which turns squares of `blocksize` pixels into channels."""

    blocksize: int
    mode: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["blocksize"] < 1:
            refuse(node, "blocksize", given["blocksize"], "1 or more")
        check_choice(node, "mode", given["mode"], ("DCR", "CRD"))
        rank = rank_of(node, 0)
        if rank not in (None, 4):
            refuse_rank(node, 0, rank, "4, [N, C, H, W]")

    def at(self, shape: Sequence[int]) -> BlockLengths:
        """The permutation of an input of `shape`. Raises `OperatorSpecError` if it cannot be divided into blocks."""
        batch, channels, height, width = shape
        size, is_depth_first = self.blocksize, self.mode == "DCR"
        is_divided = height % size == 0 == width % size
        if self.op_type == "DepthToSpace":
            is_divided = channels % size**2 == 0
        if not is_divided:
            refuse(self.node, "blocksize", size, f"one that divides an input {list(shape)}")
        if self.op_type == "SpaceToDepth":
            split = (batch, channels, height // size, size, width // size, size)
            return BlockLengths(split, (0, 3, 5, 1, 2, 4) if is_depth_first else (0, 1, 3, 5, 2, 4))
        kept = channels // size**2
        if is_depth_first:
            return BlockLengths((batch, size, size, kept, height, width), (0, 3, 4, 1, 5, 2))
        return BlockLengths((batch, kept, size, size, height, width), (0, 1, 4, 2, 5, 3))


@maps_axes("Transpose")
def _axes(node: Node) -> Axes:
    rank = rank_of_value(node.input_value(0))
    if rank is None:
        return None
    names = axis_names(rank)
    return AxisMapping((names,), (tuple(names[axis] for axis in TransposeSpec.of(node).order(rank)),))
