"""`IdentityElimination`: operations that return their input leave the graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.ir import Constant, Node, TensorType
from engine.ops.transpose import TransposeSpec
from engine.passes.fusion import constant_data
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.surgery import replace_output_update_name


class IdentityElimination(MatcherPass):
    """Removes Identity, inference-mode Dropout, and Cast, Reshape, Resize, Transpose, Expand, Slice, Pad, Concat, Sum,
    Max, Min, Add, Sub, Mul, Div and Pow that provably return their first (or only, or other) input unchanged.

    Floating-point `x + 0` stays: it turns -0.0 into 0.0. `x - 0`, `x * 1`, `x / 1` and `x ** 1` are exact.
    """

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type(sorted(_RULES))
        self.register_matcher(Matcher(root, "IdentityElimination"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node):
            return False
        index = _RULES[node.op_type](node)
        if index is None or any(output.target_inputs for output in node.outputs[1:]):
            return False
        source = node.input_value(index)
        if not _same_type(node, source.type):
            return False
        return replace_output_update_name(node.output(0), source)


def _same_type(node: Node, source: object) -> bool:
    """True if the output is known to have exactly the type of the source (or the operator never changes it)."""
    if node.op_type in ("Identity", "Dropout") or _RULES[node.op_type] is _single:
        return True
    mine = node.output(0).type
    if not isinstance(mine, TensorType) or not isinstance(source, TensorType):
        return False
    if mine.element_type is not source.element_type or mine.shape.rank.is_dynamic or source.shape.rank.is_dynamic:
        return False
    if len(mine.shape) != len(source.shape):
        return False
    return all(
        a == b and (a.is_static or a.symbol is not None)
        for a, b in zip(mine.shape.dims, source.shape.dims, strict=True)
    )


def _always(node: Node) -> int | None:
    return 0


def _dropout(node: Node) -> int | None:
    if not node.has_input(2):
        return 0
    mode = node.input_value(2).node
    return 0 if isinstance(mode, Constant) and not mode.data.any() else None


def _single(node: Node) -> int | None:
    return 0 if node.num_inputs == 1 else None


def _transpose(node: Node) -> int | None:
    perm = TransposeSpec.of(node).perm
    return 0 if perm is not None and list(perm) == sorted(perm) else None


def _slice(node: Node) -> int | None:
    # With steps of 1, a slice with the same lengths is the whole tensor.
    if not node.has_input(4):
        return 0 if node.input_value(0).shape.is_static else None
    steps = node.input_value(4).node
    unit = isinstance(steps, Constant) and bool(np.all(steps.data == 1))
    return 0 if unit and node.input_value(0).shape.is_static else None


def _resize(node: Node) -> int | None:
    from engine.ops.resize import ResizeSpec  # with its family

    shape = node.input_value(0).shape
    given = [node.input_value(index) if node.has_input(index) else None for index in (1, 2, 3)]
    if not shape.is_static or not all(value is None or isinstance(value.node, Constant) for value in given):
        return None
    return None if ResizeSpec.of(node).at(shape.get_shape(), *map(constant_data, given)).axes else 0


def _pad(node: Node) -> int | None:
    pads = node.input_value(1).node
    return 0 if isinstance(pads, Constant) and not pads.data.any() else None


def _neutral(value: int, *, commutative: bool, exact_for_reals: bool = True) -> Callable[[Node], int | None]:
    def rule(node: Node) -> int | None:
        for index in (1, 0) if commutative else (1,):
            constant = node.input_value(index).node
            if not isinstance(constant, Constant) or not (exact_for_reals or constant.element_type.is_integral):
                continue
            if bool(np.all(constant.data == value)):
                return 1 - index
        return None

    return rule


_RULES: dict[str, Callable[[Node], int | None]] = {
    "Identity": _always,
    "Dropout": _dropout,
    "Cast": _always,
    "Reshape": _always,
    "Resize": _resize,
    "Expand": _always,
    "Transpose": _transpose,
    "Slice": _slice,
    "Pad": _pad,
    "Concat": _single,
    "Sum": _single,
    "Max": _single,
    "Min": _single,
    "Mean": _single,
    "Add": _neutral(0, commutative=True, exact_for_reals=False),
    "Sub": _neutral(0, commutative=False),
    "Mul": _neutral(1, commutative=True),
    "Div": _neutral(1, commutative=False),
    "Pow": _neutral(1, commutative=False),
}
