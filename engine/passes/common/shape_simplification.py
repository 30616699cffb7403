"""`ShapeSimplification`: what is computed from shapes, and is known when the model is built, becomes constant."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.errors import ModelError
from engine.ir import Constant, Dimension, Model, Node, PartialShape, TensorType
from engine.passes.base import ModelPass
from engine.passes.common.shape_elements import STEPS, Length, Shapes
from engine.passes.fusion import replace_by
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_node, replace_output_update_name


class ShapeSimplification(ModelPass):
    """Follows shapes through Shape, Gather, Slice, Concat and their like, element by element.

    What turns out to be numbers becomes a constant, also where other dimensions of the shape stay unknown. The
    target of a Reshape becomes a constant where each length in it is a number or that of the same dimension of the
    data; an Expand to the shape that its input has leaves the graph. What Reshape, Expand and Range give is stated in
    their types where the target's elements tell.
    """

    def run_on_model(self, model: Model) -> bool:
        """One walk in topological order, bodies included; linear."""
        known = Shapes()
        changed = refined = False
        for node in model.ordered_nodes():
            for body in node.bodies.values():
                changed |= self.run_on_model(body)
            if refined:
                node.infer_types()  # what stands before it may be known better now
            if (
                node.domain
                or node.op_type not in _HANDLED
                or not node.is_attached
                or self.transformation_callback(node)
            ):
                continue
            if node.op_type in ("Reshape", "Expand", "Range"):
                simplified = _simplify_target(node, known) or _refine(node, known)
                refined |= simplified
            else:
                simplified = _make_constant(node, known)
            self.rewrites += simplified
            changed |= simplified
        return changed


def _make_constant(node: Node, known: Shapes) -> bool:
    """Put a constant in the place of `node` where all its elements are numbers."""
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
    if node.op_type == "Range" or isinstance(node.input_value(1).node, Constant):
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
    """The elements as Reshape takes them: 0 copies a length, one -1 is what remains."""
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
    # Beside a length that may be zero, -1 says nothing, unless the graph itself has it there.
    if target.count(-1) > 1 or (-1 in target and 0 in target and -1 not in elements):
        return None
    return target


def _resolved(elements: tuple[Length, ...], own: tuple[Length, ...] | None) -> tuple[Length, ...]:
    """The elements of a Reshape's target, its -1 as a number where the lengths of the data tell."""
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
    """True where to expand a tensor of the lengths `own` to `target` changes nothing."""
    if own is None or len(target) > len(own):
        return False
    tail = own[len(own) - len(target) :]
    return all(want == 1 or (want is not None and want == has) for want, has in zip(target, tail, strict=True))


def _refine(node: Node, known: Shapes) -> bool:
    """State in the type of `node` what the elements of its target say."""
    if node.op_type == "Range":
        limits = [known.elements(value) for value in node.input_values if value is not None]
        if len(limits) != 3 or None in limits:
            return False
        start, stop, step = (limit[0][0] for limit in limits if limit is not None)
        if start != 0 or step != 1:
            return False
        elements: tuple[Length, ...] = (stop,)
    else:
        found = known.elements(node.input_value(1))
        if found is None or node.op_type == "Expand":
            return False
        elements = _resolved(found[0], known.lengths(node.input_value(0)))
    old = node.output(0).type
    if not isinstance(old, TensorType):
        return False
    stated = PartialShape([_dimension(element) for element in elements])
    try:
        shape = old.shape.merge(stated)
    except ModelError:
        return False  # the graph contradicts itself; running it will tell
    if shape == old.shape:
        return False
    node.set_output_type(0, TensorType(old.element_type, shape))
    return True


def _dimension(element: Length) -> Dimension:
    if isinstance(element, int):
        return Dimension(element) if element > 0 else Dimension()
    if isinstance(element, tuple) and element[0] == "symbol":
        return Dimension(symbol=str(element[1]))
    return Dimension()


_HANDLED = frozenset({*STEPS, "Reshape", "Expand", "Range"})
