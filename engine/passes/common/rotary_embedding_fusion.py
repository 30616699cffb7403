"""`RotaryEmbeddingFusion`: x * cos + rotated(x) * sin becomes the operator."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output
from engine.passes.fusion import FusionPass, charge, constant_data, dims_of, integers, operation, same_length, scalar
from engine.passes.pattern import Matcher, any_input, attrs_match, rank_equals, wrap_const, wrap_type


class RotaryEmbeddingFusion(FusionPass):
    """Recognises Add(Mul(x, cos), Mul(Concat(Neg(x[..., h:]), x[..., :h]), sin)) of x: [B, H, S, 2h].

    `cos` and `sin` are [B or 1, 1, S, 2h] and repeat their first half, as a constant or by a Concat of a value with
    itself: the operator takes only that half.
    """

    makes = frozenset({"RotaryEmbedding", "Expand", "Squeeze"})

    def __init__(self) -> None:
        super().__init__()
        self._x, self._cosine, self._sine = (
            any_input(rank_equals(4)),
            any_input(rank_equals(4)),
            any_input(rank_equals(4)),
        )
        bounds = [[wrap_const() for _ in range(4)] for _ in range(2)]
        self._upper, self._lower = (wrap_type("Slice", [self._x, *parts]) for parts in bounds)
        turned = wrap_type(
            "Concat", [wrap_type("Neg", [self._upper]), self._lower], attrs_match(axis=lambda a: a in (-1, 3))
        )
        root = wrap_type("Add", [wrap_type("Mul", [self._x, self._cosine]), wrap_type("Mul", [turned, self._sine])])
        self.register_fusion(root, self._make)

    def _make(self, m: Matcher) -> list[Node] | None:
        values = m.pattern_value_map
        data = values[self._x]
        width = data.shape[3]
        if width.is_dynamic or width.get_length() % 2:
            return None
        half = width.get_length() // 2
        wanted = ((half, 2 * half), (0, half))
        if any(_bounds(values[s].node, 2 * half) != w for s, w in zip((self._upper, self._lower), wanted, strict=True)):
            return None
        tables = [values[self._cosine], values[self._sine]]
        if not all(_is_table(table, data, half) for table in tables):
            return None
        made: list[Node] = []
        halves = [_half(table, data, half, made) for table in tables]
        return [*made, ops.RotaryEmbedding(data, *halves)]


def _bounds(node: Node, length: int) -> tuple[int, int] | None:
    """Start and end of a Slice of the last of four axes of this length."""
    numbers = [integers(node.input_value(i)) for i in range(1, 5)]
    if any(n is None or len(n) != 1 for n in numbers):
        return None
    start, end, axis, step = (n[0] for n in numbers if n is not None)
    if axis not in (-1, 3) or step != 1:
        return None
    first, last, _ = slice(start, end).indices(length)
    return first, last


def _is_table(table: Output, data: Output, half: int) -> bool:
    """True if `table` is [B or 1, 1, S, 2h] for `data` and its two halves are equal."""
    dims, wanted = dims_of(table), dims_of(data)
    if dims is None or wanted is None or table.element_type is not data.element_type:
        return False
    fits = dims[1] == 1 and dims[3] == 2 * half and same_length(dims[2], wanted[2])
    return fits and (dims[0] == 1 or same_length(dims[0], wanted[0])) and _repeats(table, half)


def _repeats(value: Output, half: int) -> bool:
    """True if the second half of the last axis repeats the first one."""
    for _ in range(16):
        data = constant_data(value)
        if data is not None:
            return bool(data.ndim) and np.array_equal(data[..., :half], data[..., half:])
        node = value.node
        joined = operation(value, "Concat")
        if joined is not None:
            rank = len(value.shape)
            is_last = ops.attribute(joined, "axis") % rank == rank - 1
            return is_last and joined.num_inputs == 2 and joined.input_value(0) == joined.input_value(1)
        if operation(value, "Unsqueeze", "Reshape"):
            mine, source = dims_of(value), dims_of(node.input_value(0))
            if not mine or not source or not same_length(mine[-1], source[-1]):
                return False
        elif operation(value, "Mul"):
            if scalar(node.input_value(1)) is None:
                return False
        elif not operation(value, "Cos", "Sin", "Cast"):
            return False
        value = node.input_value(0)
    return False


def _half(table: Output, data: Output, half: int, made: list[Node]) -> Output:
    """`table` as [B, S, h]; the nodes created for this are appended to `made`."""
    constant = constant_data(table)
    batch = data.shape[0]
    if constant is not None:
        array = constant[:, 0, :, :half]
        if batch.is_static:
            array = np.broadcast_to(array, (batch.get_length(), *array.shape[1:]))
        if isinstance(table.node, Constant):
            charge([table.node], array.nbytes)
        value = Constant(np.ascontiguousarray(array)).output(0)
    else:
        part = ops.Slice(table, *(Constant(np.array([n], np.int64)) for n in (0, half, 3)))
        flat = ops.Squeeze(part, Constant(np.array([1], np.int64)))
        made += [part, flat]
        value = flat.output(0)
    if same_length(value.shape[0], batch):
        return value
    ones = Constant(np.array([1, 1], np.int64))
    length = ops.Shape(data, start=0, end=1)
    shape = ops.Concat(length, ones, axis=0)
    whole = ops.Expand(value, shape)
    made += [length, shape, whole]
    return whole.output(0)
