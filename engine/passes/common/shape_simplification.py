"""`ShapeSimplification`: values computed from shapes that are known at compile time become constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

import numpy as np

from engine import ops
from engine.errors import ModelError
from engine.ir import Constant, Dimension, Model, Node, PartialShape, TensorType
from engine.ops.traits import traits_of
from engine.passes.base import ModelPass
from engine.passes.common.shape_elements import STEPS, Length, Shapes
from engine.passes.fusion import dims_of, integers, replace_by
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import infer_again, replace_node, replace_output_update_name


class ShapeSimplification(ModelPass):
    """Tracks shapes through Shape, Gather, Slice, Concat and similar operators, element by element.

    Values whose elements are all known become constants, even if other dimensions of the shape are unknown. The target
    of a Reshape becomes a constant if each length is known or equals the length of the same dimension of the data; an
    Expand to the shape of its input is removed. The output types of Reshape, Expand, Range and Slice are refined from
    their elements.
    """

    def run_on_model(self, model: Model) -> bool:
        """One walk in topological order, bodies included; linear."""
        known = Shapes(dim.symbol for parameter in model.parameters for dim in dims_of(parameter.output(0)) or ())
        changed = refined = False
        for node in model.ordered_nodes():
            changed |= self.run_on_bodies(node)
            if refined:
                infer_again(node)  # types before this node may have been refined
            is_handled = node.op_type in _HANDLED or (known.has_minima and traits_of(node).broadcasts)
            if node.domain or not is_handled or not node.is_attached or self.transformation_callback(node):
                continue
            simplified = _make_constant(node, known) if node.op_type in STEPS else _simplify_target(node, known)
            if not simplified:
                simplified = _refine(node, known)
                refined |= simplified
            self.rewrites += simplified
            changed |= simplified
        return changed


def _make_constant(node: Node, known: Shapes) -> bool:
    """Replace `node` by a constant if all its elements are known."""
    found = known.elements(node.output(0))
    if found is None or not all(isinstance(element, int) for element in found[0]):
        return False
    if not node.output(0).element_type.is_integral:
        return False
    elements, rank = found
    data = np.array(elements, node.output(0).element_type.numpy)
    constant = Constant(data.reshape(() if rank == 0 else -1), friendly_name=node.friendly_name)
    copy_runtime_info(node, constant)
    replace_node(node, constant)
    return True


def _simplify_target(node: Node, known: Shapes) -> bool:
    if node.op_type not in ("Reshape", "Expand") or isinstance(node.input_value(1).node, Constant):
        return False
    data, found = node.input_value(0), known.elements(node.input_value(1))
    if found is None:
        return False
    own = known.lengths(data)
    if node.op_type == "Expand":
        return _is_same(own, found[0]) and replace_output_update_name(node.output(0), data)
    target = _constant_target(found[0], own)
    return target is not None and replace_by(node, [node], [ops.Reshape(data, Constant(np.array(target, np.int64)))])


def _constant_target(elements: tuple[Length, ...], own: tuple[Length, ...] | None) -> list[int] | None:
    """The elements as Reshape takes them: 0 copies a length, one -1 stands for the remaining length."""
    elements = _resolved(elements, own)
    target: list[int] = []
    for index, element in enumerate(elements):
        if isinstance(element, int) and element != 0:
            target.append(element)
        elif isinstance(element, tuple) and own is not None and index < len(own) and own[index] == element:
            target.append(0)
        elif isinstance(element, tuple):
            target.append(-1)
        else:
            return None
    # With another length that may be zero, -1 is ambiguous, unless the graph itself uses it there.
    if target.count(-1) > 1 or (-1 in target and 0 in target and -1 not in elements):
        return None
    return target


def _resolved(elements: tuple[Length, ...], own: tuple[Length, ...] | None) -> tuple[Length, ...]:
    """The elements of a Reshape's target, with -1 resolved if the lengths of the data are known."""
    if own is None or elements.count(-1) != 1 or None in elements:
        return elements
    left, divisor = list(own), 1
    for element in elements:
        if isinstance(element, tuple):
            if element not in left:
                return elements
            left.remove(element)
        elif element != -1:
            divisor *= element or 0
    if divisor <= 0 or not all(isinstance(length, int) for length in left):
        return elements
    size = 1
    for length in left:
        assert isinstance(length, int)
        size *= length
    return tuple([size // divisor if element == -1 and size % divisor == 0 else element for element in elements])


def _is_same(own: tuple[Length, ...] | None, target: tuple[Length, ...]) -> bool:
    """True if expanding a tensor of shape `own` to `target` changes nothing."""
    if own is None or len(target) > len(own):
        return False
    tail = own[len(own) - len(target) :]
    return all(want == 1 or (want is not None and want == has) for want, has in zip(target, tail, strict=True))


def _refine(node: Node, known: Shapes) -> bool:
    """Refine the type of `node` from the elements of its target, its limits, or its bounds."""
    result = _RESULTS.get(node.op_type)
    if result is None and known.has_minima and traits_of(node).broadcasts:
        result = _broadcasts
    lengths = None if result is None else result(node, known)
    if lengths is None:
        return False
    old = node.output(0).type
    if not isinstance(old, TensorType):
        return False
    stated = PartialShape([_dimension(length) for length in lengths])
    try:
        shape = old.shape.merge(stated)
    except ModelError:
        return False  # the graph is contradictory; running it will raise
    if shape == old.shape:
        return False
    node.set_output_type(0, TensorType(old.element_type, shape))
    return True


def _range(node: Node, known: Shapes) -> tuple[Length, ...] | None:
    limits = [known.elements(value) for value in node.input_values if value is not None]
    if len(limits) != 3 or None in limits:
        return None
    start, stop, step = (limit[0][0] for limit in limits if limit is not None)
    return (stop,) if start == 0 and step == 1 else None


def _reshape(node: Node, known: Shapes) -> tuple[Length, ...] | None:
    found = known.elements(node.input_value(1))
    return None if found is None else _resolved(found[0], known.lengths(node.input_value(0)))


def _expand(node: Node, known: Shapes) -> tuple[Length, ...] | None:
    own, found = known.lengths(node.input_value(0)), known.elements(node.input_value(1))
    return None if own is None or found is None else _broadcast(known, [own, found[0]])


def _broadcasts(node: Node, known: Shapes) -> tuple[Length, ...] | None:
    data = node.input_values[: traits_of(node).data]
    shapes = [None if value is None else known.lengths(value) for value in data]
    given = [shape for shape in shapes if shape is not None]
    return _broadcast(known, given) if given and len(given) == len(shapes) else None


def _broadcast(known: Shapes, shapes: Sequence[tuple[Length, ...]]) -> tuple[Length, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple([reduce(known.broadcast, lengths) for lengths in zip(*padded, strict=True)])


def _slice(node: Node, known: Shapes) -> tuple[Length, ...] | None:
    """The first elements of axes: as many as another length, at most."""
    own, ends = known.lengths(node.input_value(0)), known.elements(node.input_value(2))
    starts, axes, steps = (integers(node.input_value(i)) if node.has_input(i) else None for i in (1, 3, 4))
    if own is None or ends is None or axes is None or starts != [0] * len(axes) or len(ends[0]) != len(axes):
        return None
    if (node.has_input(4) and steps != [1] * len(axes)) or not all(-len(own) <= axis < len(own) for axis in axes):
        return None
    lengths: list[Length] = [None] * len(own)
    for axis, end in zip(axes, ends[0], strict=True):
        length = own[axis]
        lengths[axis] = known.minimum(length, end) if isinstance(length, int) else length if length == end else None
    return tuple(lengths)


_RESULTS: Final[dict[str, Callable[[Node, Shapes], tuple[Length, ...] | None]]] = {
    "Expand": _expand,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
}


def _dimension(element: Length) -> Dimension:
    if isinstance(element, int):
        return Dimension(element) if element > 0 else Dimension()
    if isinstance(element, tuple) and element[0] == "symbol":
        return Dimension(symbol=str(element[1]))
    return Dimension()


_HANDLED: Final = frozenset({*STEPS, *_RESULTS})
