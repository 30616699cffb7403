"""`DequantizationRecognition`: casts and factors of weights in 8 bits become `DequantizeLinear`."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, f32, i8, u8
from engine.passes import MatcherPass
from engine.passes.fusion import operation, replace_by
from engine.passes.pattern import Matcher, wrap_type

_CODES: Final = (u8, i8)
_LIMITS: Final = {u8: (0, 255), i8: (-128, 127)}
_MATRIX: Final = 2


class DequantizationRecognition(MatcherPass):
    """Turns Mul(Cast(codes), scale) and Mul(Sub(Cast(codes), zero point), scale) into `DequantizeLinear`.

    The numbers are the same. For constant matrices of 8 bits, with one scale, or one for each row or column, that
    products and look-ups read: they keep their size in memory then, instead of being folded into f32.
    """

    makes = frozenset({"DequantizeLinear"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("Mul"), self.name), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node) or not _is_of_weights(node.output(0)):
            return False
        for index in (0, 1):
            scale, difference = node.input_value(index).node, node.input_value(1 - index)
            codes, zero_point = _codes(difference)
            if codes is None or not isinstance(scale, Constant) or scale.element_type is not f32:
                continue
            made = _dequantized(codes, scale, zero_point)
            if made is not None:
                return replace_by(node, [difference.node, node], [made])
        return False


def _is_of_weights(value: Output) -> bool:
    """Whether all readers are products, whose second operand it is, and look-ups of rows."""
    places = {"MatMul": 1, "Gemm": 1, "Gather": 0}
    targets = value.target_inputs
    return bool(targets) and all(
        not each.node.domain and places.get(each.node.op_type) == each.index for each in targets
    )


def _codes(value: Output) -> tuple[Constant | None, Constant | None]:
    """The constant of a Cast to f32, and the constant that is subtracted from it, if any."""
    difference = operation(value, "Sub")
    if difference is not None:
        codes, _ = _codes(difference.input_value(0)) if operation(difference.input_value(0), "Cast") else (None, None)
        zero_point = _cast_constant(difference.input_value(1))
        return (codes, zero_point) if zero_point is not None else (None, None)
    codes = _cast_constant(value) if operation(value, "Cast") else None
    if codes is None or value.element_type is not f32 or codes.element_type not in _CODES:
        return None, None
    return codes, None


def _cast_constant(value: Output) -> Constant | None:
    """A constant, or that of a Cast of one."""
    cast = operation(value, "Cast")
    source = value.node if cast is None else cast.input_value(0).node
    return source if isinstance(source, Constant) else None


def _dequantized(codes: Constant, scale: Constant, zero_point: Constant | None) -> Node | None:
    shape = codes.shape
    if len(shape) != _MATRIX or 0 in shape:
        return None
    axis = _axis(scale, shape)
    if axis is None:
        return None
    factors = Constant(scale.data.reshape(-1) if scale.data.size > 1 else scale.data.reshape(()), f32)
    if zero_point is None:
        return ops.DequantizeLinear(codes, factors, axis=axis)
    low, high = _LIMITS[codes.element_type]
    starts = zero_point.data.astype(np.float64)
    fits = bool(np.all((starts >= low) & (starts <= high) & (starts == np.rint(starts))))
    if not fits or _axis(zero_point, shape) is None or (zero_point.data.size > 1 and _axis(zero_point, shape) != axis):
        return None
    try:
        starts = np.broadcast_to(starts.reshape(-1), factors.shape or (1,)).reshape(factors.shape)
    except ValueError:  # one scale, and several zero points
        return None
    return ops.DequantizeLinear(codes, factors, Constant(starts.astype(codes.element_type.numpy)), axis=axis)


def _axis(parameter: Constant, shape: tuple[int, ...]) -> int | None:
    """The axis of a matrix that a constant, which broadcasts to it, has values for; 1 if it has only one."""
    own = parameter.shape
    if len(own) > _MATRIX:
        return None
    own = (1,) * (_MATRIX - len(own)) + tuple(own)
    if own == (1, 1):
        return 1
    return next((axis for axis in (0, 1) if own[axis] == shape[axis] and own[1 - axis] == 1), None)
