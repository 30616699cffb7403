"""Pad: its spec, type rule, axes and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import OperatorSpecError
from engine.ir import Dimension, Node, PartialShape, TensorType, ValueType, as_dimension
from engine.ops.axes import Axes, AxisParameter, along, constant_axes, declare_parameter, maps_axes, rank_of_value
from engine.ops.registry import get_op, infers
from engine.ops.rules import check_inputs, fail, known_vector, tensor_type
from engine.ops.spec import OperatorSpec, check_choice, evaluates_with_spec, resolved_axes, specifies
from engine.ops.tensors import Array
from engine.ops.traits import Moves, declare
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class PadLengths:
    """The lengths of a Pad, for each axis.

    Attributes:
        before: the number of elements added at the start; if negative, the number removed there.
        after: the same at the end.
        kept: the number of remaining elements of the input, which modes other than constant repeat.
        shape: the shape of the result.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    kept: tuple[int, ...]
    shape: tuple[int, ...]


declare("Pad", moves=Moves.REPETITION, fills=True, inflates=True, vectorized=True)
declare_parameter("Pad", parameter=AxisParameter(amounts=1))


@specifies("Pad")
@dataclass(frozen=True, slots=True, kw_only=True)
class PadSpec(OperatorSpec):
    """Pad (ONNX Pad-25), whose pads are inputs."""

    mode: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "mode", given["mode"], ("constant", "edge", "reflect", "wrap"))

    def at(self, shape: Sequence[int], pads: Array, axes: Array | None = None) -> PadLengths:
        """The lengths for an input of `shape`.

        Raises `OperatorSpecError` if there are not two pads per axis, or they remove more than there is.
        """
        names = range(len(shape)) if axes is None else axes.reshape(-1).tolist()
        resolved = resolved_axes(self.node, names, len(shape))
        amounts = pads.reshape(-1).tolist()
        if len(amounts) != 2 * len(resolved):
            raise OperatorSpecError(
                f"{self.node}: {len(amounts)} pads do not fit {len(resolved)} axes; expected two per axis"
            )
        before, after = [0] * len(shape), [0] * len(shape)
        for index, axis in enumerate(resolved):
            before[axis], after[axis] = amounts[index], amounts[index + len(resolved)]
        sides = list(zip(shape, before, after, strict=True))
        kept = tuple(n + min(a, 0) + min(b, 0) for n, a, b in sides)
        result = tuple(a + n + b for n, a, b in sides)
        if min(result, default=0) < 0:
            raise OperatorSpecError(f"{self.node}: pads {amounts} remove more than an input {list(shape)} has")
        return PadLengths(tuple(before), tuple(after), kept, result)


@infers("Pad")
def _infer_pad(node: Node) -> Sequence[ValueType]:
    """ONNX takes axes of unknown values for all axes, and refuses a node whose number of pads then does not fit."""
    check_inputs(node, get_op("Pad"))
    data, pads = tensor_type(node, 0), tensor_type(node, 1).shape
    amounts, axes = known_vector(node, 1), known_vector(node, 3)
    if node.has_input(3) and axes is None and amounts and any(amounts):
        amounts = None  # it is not known which axes they pad
    if data.shape.rank.is_dynamic:
        count = pads.size() // 2 if pads.is_static and not node.has_input(3) else None
        return (TensorType(data.element_type, PartialShape.dynamic(count)),)
    if amounts is None:
        if not node.has_input(3) and pads.is_static and pads.size() != 2 * len(data.shape):
            fail(node, f"{pads.size()} pads do not fit {len(data.shape)} axes; expected two per axis")
        padded = range(len(data.shape)) if axes is None else resolved_axes(node, axes, len(data.shape))
        kept = [None if axis in padded else dim for axis, dim in enumerate(data.shape)]
        return (TensorType(data.element_type, PartialShape(kept)),)
    if not any(amounts):
        return (data,)
    resolved = resolved_axes(node, range(len(data.shape)) if axes is None else axes, len(data.shape))
    if len(amounts) != 2 * len(resolved):
        fail(node, f"{len(amounts)} pads do not fit {len(resolved)} axes; expected two per axis")
    dims = list(data.shape.dims)
    for place, axis in enumerate(resolved):
        added = amounts[place] + amounts[place + len(resolved)]
        longest = dims[axis].max
        if longest is not None and longest + added < 0:
            fail(node, f"pads {amounts} remove more than dimension {axis} of {data.shape} has")
        dims[axis] = _grown(dims[axis], added)
    return (TensorType(data.element_type, PartialShape(dims)),)


def _grown(dim: Dimension, added: int) -> Dimension:
    if not added:
        return dim
    low = max(0, dim.min + added)
    if dim.max is None:
        return Dimension.at_least(low)
    return as_dimension(low) if dim.is_static else Dimension(low, dim.max + added)


@evaluates_with_spec("Pad")
def _pad(spec: PadSpec, data: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
    lengths = spec.at(data.shape, pads, axes)
    sides = list(zip(data.shape, lengths.before, lengths.after, strict=True))
    kept = data[tuple(slice(max(0, -a), max(0, n - max(0, -b))) for n, a, b in sides)]
    grown = [(max(0, a), max(0, b)) for _, a, b in sides]
    if spec.mode == "constant":
        return _constant_pad(kept, grown, value)
    return np.pad(kept, grown, mode=spec.mode)  # type: ignore[call-overload, no-any-return]


def _constant_pad(data: Array, widths: list[tuple[int, int]], value: Array | None) -> Array:
    fill: Any = ("" if data.dtype == object else 0) if value is None or not value.size else value.reshape(-1)[0]
    result = np.full([a + n + b for n, (a, b) in zip(data.shape, widths, strict=True)], fill, dtype=data.dtype)
    result[tuple(slice(a, a + n) for n, (a, _) in zip(data.shape, widths, strict=True))] = data
    return result


@maps_axes("Pad")
def _axes(node: Node) -> Axes:
    rank, amounts, axes = rank_of_value(node.input_value(0)), constant_axes(node, 1), constant_axes(node, 3)
    if rank is None or amounts is None or (node.has_input(3) and axes is None):
        return None
    named, count = list(range(rank)) if axes is None else axes, len(amounts) // 2
    return along(node, [axis for axis, *pads in zip(named, amounts[:count], amounts[count:], strict=True) if any(pads)])
