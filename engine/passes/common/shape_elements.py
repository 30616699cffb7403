"""Symbolic elements of small integer tensors that are computed from shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from engine.ir import Constant, Dimension, ElementType, Node, Output
from engine.ops.creation import ShapeSpec
from engine.passes.fusion import dims_of, integers

Length: TypeAlias = "int | tuple[object, ...] | None"
"""An element of a shape: a number, the name of a length (equal names mean equal lengths), or None if unknown."""

_MAX_ELEMENTS = 64
_LENGTH_BITS = 32
"""The minimum number of bits of an integer type for tracking an unknown length through it."""
_EXACT_BITS = {"f32": 24, "f64": 53}
"""Floating-point types in which lengths are tracked, with the bits of integers that they hold exactly.

Exporters compute the end of a Range in f32, so an unknown length is assumed to fit one of these.
"""


class Shapes:
    """The elements of small integer tensors, each computed once.

    `taken` are the symbols of the model's inputs.
    """

    __slots__ = ("_found", "_minima", "_taken")

    def __init__(self, taken: Iterable[str | None] = ()) -> None:
        self._found: dict[Output, tuple[tuple[Length, ...], int] | None] = {}
        self._minima: set[tuple[Length, Length]] = set()
        self._taken = frozenset(taken)

    def lengths(self, value: Output) -> tuple[Length, ...] | None:
        """The shape of `value`; None where its rank is unknown."""
        dims = dims_of(value)
        if dims is None:
            return None
        return tuple([_length(value, axis, dim) for axis, dim in enumerate(dims)])

    def elements(self, value: Output) -> tuple[tuple[Length, ...], int] | None:
        """The elements of `value` and its rank, 0 or 1; None if it is not a small tensor of integers."""
        if value not in self._found:
            self._found[value] = None
            self._found[value] = self._compute(value)
        return self._found[value]

    def minimum(self, most: int, length: Length) -> Length:
        """The name of the minimum of a number above 0 and a length; None if there is none."""
        if not isinstance(length, tuple) or length[0] != "symbol" or most < 1:
            return None
        name = f"min({most},{length[1]})"
        if name in self._taken:
            return None
        self._minima.add((("symbol", name), length))
        return ("symbol", name)

    def broadcast(self, a: Length, b: Length) -> Length:
        """The length to which two broadcast, given that they do."""
        if a == b or b == 1 or (isinstance(a, int) and a != 1):
            return a
        if a == 1 or isinstance(b, int):
            return b
        # The minimum of a number and b is b, or is less than it and above 1 and does not broadcast, or is 1 itself.
        return b if (a, b) in self._minima else a if (b, a) in self._minima else None

    @property
    def has_minima(self) -> bool:
        """Whether the minimum of a length and a number has a name."""
        return bool(self._minima)

    def _compute(self, value: Output) -> tuple[tuple[Length, ...], int] | None:
        node, dims = value.node, dims_of(value)
        if dims is None or len(dims) > 1 or node.domain or any(dim.is_dynamic for dim in dims):
            return None
        if isinstance(node, Constant):
            return (_whole_numbers(node), len(dims)) if value.shape.size() <= _MAX_ELEMENTS else None
        step = STEPS.get(node.op_type)
        elements = None if step is None else step(self, node)
        if elements is None or len(elements) > _MAX_ELEMENTS or (not dims and len(elements) != 1):
            return None
        return tuple([_held(element, value.element_type) for element in elements]), len(dims)

    def source(self, node: Node, index: int = 0) -> tuple[Length, ...] | None:
        """The elements of input `index` of `node`; None if they are unknown."""
        found = self.elements(node.input_value(index))
        return None if found is None else found[0]


def _whole_numbers(constant: Constant) -> tuple[Length, ...]:
    """The elements of a constant; those that are not integers are unknown."""
    if not (constant.element_type.is_integral or constant.element_type.is_real):
        return (None,) * constant.output(0).shape.size()
    return tuple([int(x) if float(x).is_integer() else None for x in constant.data.reshape(-1).tolist()])


def _held(element: Length, element_type: ElementType) -> Length:
    """`element` if its type holds it exactly; None if it would be wrapped or rounded, or is a bool."""
    if element_type.is_integral:
        if not isinstance(element, int):
            return element if element_type.bits >= _LENGTH_BITS else None
        lowest = -(1 << element_type.bits - 1) if element_type.is_signed else 0
        return element if lowest <= element < lowest + (1 << element_type.bits) else None
    exact = _EXACT_BITS.get(element_type.name)
    if exact is None or (isinstance(element, int) and abs(element) > 1 << exact):
        return None
    return element


def _length(value: Output, axis: int, dim: Dimension) -> Length:
    if dim.is_static:
        return dim.get_length()
    return ("symbol", dim.symbol) if dim.symbol is not None else ("length", value, axis)


def _shape(known: Shapes, node: Node) -> tuple[Length, ...] | None:
    lengths = known.lengths(node.input_value(0))
    if lengths is None:
        return None
    return tuple(ShapeSpec.of(node).at(lengths))


def _gather(known: Shapes, node: Node) -> tuple[Length, ...] | None:
    elements, indices = known.source(node), integers(node.input_value(1))
    if elements is None or indices is None or not all(-len(elements) <= i < len(elements) for i in indices):
        return None
    return tuple([elements[i] for i in indices])


def _slice(known: Shapes, node: Node) -> tuple[Length, ...] | None:
    elements = known.source(node)
    start, end, step = (_number(known, node, index) if node.has_input(index) else 1 for index in (1, 2, 4))
    if elements is None or start is None or end is None or not step:
        return None
    return elements[_slice_of(start, end, step, len(elements))]


def _number(known: Shapes, node: Node, index: int) -> int | None:
    """The single number of an input, if it is known."""
    found = known.source(node, index)
    return found[0] if found is not None and len(found) == 1 and isinstance(found[0], int) else None


def _slice_of(start: int, end: int, step: int, length: int) -> slice:
    """A Slice of elements. Unlike Python, ONNX clamps the bounds of a backward slice."""
    if step < 0:
        start = max(start, -length)
    if step < 0 and end < -length:
        return slice(start, None, step)
    return slice(start, end, step)


def _concat(known: Shapes, node: Node) -> tuple[Length, ...] | None:
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
    if dims is None or len(dims) != 1 or dims[0].is_dynamic or dims[0].get_length() > _MAX_ELEMENTS:
        return None
    return (None,) * dims[0].get_length()


def _same(known: Shapes, node: Node) -> tuple[Length, ...] | None:
    return known.source(node)


def _arithmetic(known: Shapes, node: Node) -> tuple[Length, ...] | None:
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
        # Truncated division; shapes have no negative lengths or divisors.
        return x // y if x >= 0 and y > 0 else None
    return {"Add": x + y, "Sub": x - y, "Mul": x * y}[op_type]


STEPS: Final[dict[str, Callable[[Shapes, Node], tuple[Length, ...] | None]]] = {
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
"""The operators through which elements are tracked."""
