"""`ShapeSimplification`: what is computed from shapes, and is known when the model is built, becomes constant."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from engine import ops
from engine.errors import ModelError
from engine.ir import Constant, Dimension, Model, Node, Output, PartialShape, TensorType
from engine.ops import attribute
from engine.passes.base import ModelPass
from engine.passes.fusion import dims_of, integers, replace_by
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_node, replace_output_update_name

Length: TypeAlias = "int | tuple[object, ...] | None"
"""An element of a shape: a number, the name of a length (equal names are equal lengths), or None for anything."""

_LARGEST = 64


class ShapeSimplification(ModelPass):
    """Follows shapes through Shape, Gather, Slice, Concat and their like, element by element.

    What turns out to be numbers becomes a constant, also where other dimensions of the shape stay unknown. The
    target of a Reshape becomes a constant where each length in it is a number or that of the same dimension of the
    data; an Expand to the shape that its input has leaves the graph. What Reshape, Expand and Range give is stated in
    their types where the target's elements tell.
    """

    def run_on_model(self, model: Model) -> bool:
        """One walk in topological order, bodies included; linear."""
        known = _Shapes()
        changed = refined = False
        for node in model.ordered_nodes():
            for body in node.bodies.values():
                changed |= self.run_on_model(body)
            if refined:
                node.infer_types()  # what stands before it may be known better now
            if node.domain or node.op_type not in _HANDLED or not node._attached or self.transformation_callback(node):
                continue
            if node.op_type in ("Reshape", "Expand", "Range"):
                refined |= _simplify_target(node, known) or _refine(node, known)
            else:
                changed |= _make_constant(node, known)
        return changed or refined


def _make_constant(node: Node, known: _Shapes) -> bool:
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


def _simplify_target(node: Node, known: _Shapes) -> bool:
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


def _refine(node: Node, known: _Shapes) -> bool:
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


class _Shapes:
    """The elements of small integer tensors, each computed once."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[Output, tuple[tuple[Length, ...], int] | None] = {}

    def lengths(self, value: Output) -> tuple[Length, ...] | None:
        """The shape of `value`; None where its rank is unknown."""
        dims = dims_of(value)
        if dims is None:
            return None
        return tuple([_length(value, axis, dim) for axis, dim in enumerate(dims)])

    def elements(self, value: Output) -> tuple[tuple[Length, ...], int] | None:
        """The elements of `value` and its rank, 0 or 1; None where it is no small tensor of integers."""
        if value not in self._found:
            self._found[value] = None
            self._found[value] = self._compute(value)
        return self._found[value]

    def _compute(self, value: Output) -> tuple[tuple[Length, ...], int] | None:
        node, dims = value.node, dims_of(value)
        if dims is None or len(dims) > 1 or node.domain or any(dim.is_dynamic for dim in dims):
            return None
        if isinstance(node, Constant):
            return (_whole_numbers(node), len(dims)) if value.shape.size() <= _LARGEST else None
        step = _STEPS.get(node.op_type)
        elements = None if step is None else step(self, node)
        if elements is None or len(elements) > _LARGEST or (not dims and len(elements) != 1):
            return None
        return elements, len(dims)

    def source(self, node: Node, index: int = 0) -> tuple[Length, ...] | None:
        """The elements of an input."""
        found = self.elements(node.input_value(index))
        return None if found is None else found[0]


def _whole_numbers(constant: Constant) -> tuple[Length, ...]:
    """The elements of a constant; those that are no whole numbers as unknown ones."""
    if not (constant.element_type.is_integral or constant.element_type.is_real):
        return (None,) * constant.output(0).shape.size()
    return tuple([int(x) if float(x).is_integer() else None for x in constant.data.reshape(-1).tolist()])


def _length(value: Output, axis: int, dim: Dimension) -> Length:
    if dim.is_static:
        return dim.get_length()
    return ("symbol", dim.symbol) if dim.symbol is not None else ("length", value, axis)


def _shape(known: _Shapes, node: Node) -> tuple[Length, ...] | None:
    lengths = known.lengths(node.input_value(0))
    if lengths is None:
        return None
    return lengths[slice(attribute(node, "start"), node.attributes.get("end"))]


def _gather(known: _Shapes, node: Node) -> tuple[Length, ...] | None:
    elements, indices = known.source(node), integers(node.input_value(1))
    if elements is None or indices is None or not all(-len(elements) <= i < len(elements) for i in indices):
        return None
    return tuple([elements[i] for i in indices])


def _slice(known: _Shapes, node: Node) -> tuple[Length, ...] | None:
    elements = known.source(node)
    bounds = [known.source(node, index) for index in range(1, node.num_inputs) if node.has_input(index)]
    if elements is None or any(b is None or len(b) != 1 or not isinstance(b[0], int) for b in bounds):
        return None
    numbers = [b[0] for b in bounds if b is not None]
    start, end = numbers[0], numbers[1]
    step = numbers[3] if node.has_input(4) else 1
    assert isinstance(start, int) and isinstance(end, int) and isinstance(step, int)  # noqa: PT018
    if step == 0:
        return None
    return elements[_slice_of(start, end, step, len(elements))]


def _slice_of(start: int, end: int, step: int, length: int) -> slice:
    """ONNX clamps the end of a backward slice where Python would count it from the back."""
    if step < 0 and end < -length:
        return slice(start, None, step)
    return slice(start, end, step)


def _concat(known: _Shapes, node: Node) -> tuple[Length, ...] | None:
    joined: tuple[Length, ...] = ()
    for index in range(node.num_inputs):
        part = known.source(node, index)
        if part is None:
            part = _unknown(node.input_value(index))
        if part is None:
            return None
        joined += part
    return joined


def _unknown(value: Output) -> tuple[Length, ...] | None:
    """As many unknown elements as a vector of known length has."""
    dims = dims_of(value)
    if dims is None or len(dims) != 1 or dims[0].is_dynamic or dims[0].get_length() > _LARGEST:
        return None
    return (None,) * dims[0].get_length()


def _same(known: _Shapes, node: Node) -> tuple[Length, ...] | None:
    return known.source(node)


def _arithmetic(known: _Shapes, node: Node) -> tuple[Length, ...] | None:
    a, b = known.source(node, 0), known.source(node, 1)
    if not node.output(0).element_type.is_integral:
        return None
    if a is None or b is None or node.num_inputs != 2 or (len(a) != len(b) and 1 not in (len(a), len(b))):
        return None
    count = max(len(a), len(b))
    pairs = zip(a * (count // len(a)) if a else a, b * (count // len(b)) if b else b, strict=False)
    return tuple([_combined(node.op_type, x, y) for x, y in pairs])


def _combined(op_type: str, x: Length, y: Length) -> Length:
    if op_type == "Mul" and 1 in (x, y):
        return y if x == 1 else x
    if not isinstance(x, int) or not isinstance(y, int):
        return x if (op_type in ("Add", "Sub") and y == 0) or (op_type == "Div" and y == 1) else None
    if op_type == "Div":
        # Truncated division; a negative length or divisor is nothing that shapes have.
        return x // y if x >= 0 and y > 0 else None
    return {"Add": x + y, "Sub": x - y, "Mul": x * y}[op_type]


_STEPS = {
    "Shape": _shape,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _same,
    "Squeeze": _same,
    "Identity": _same,
    "Cast": _same,
    "Add": _arithmetic,
    "Sub": _arithmetic,
    "Mul": _arithmetic,
    "Div": _arithmetic,
}
_HANDLED = frozenset({*_STEPS, "Reshape", "Expand", "Range"})
