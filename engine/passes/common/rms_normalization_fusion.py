"""`RMSNormalizationFusion`: decomposed root mean square normalization becomes the operator."""

from __future__ import annotations

from engine import ops
from engine.ir import Node, bf16, f16, f32
from engine.passes.fusion import FusionPass, as_vector, dims_of, scalar, trailing_axes
from engine.passes.pattern import (
    Matcher,
    any_input,
    any_of,
    attrs_match,
    optional,
    type_matches,
    wrap_const,
    wrap_type,
)


class RMSNormalizationFusion(FusionPass):
    """Recognises x / sqrt(mean(x^2) + epsilon) * scale, also with the division as a product with a reciprocal.

    For narrow types, the form computed in float32 between two Casts is recognised, which matches the operator. float64
    is not fused: the operator computes in float32.
    """

    makes = frozenset({"RMSNormalization"})

    def __init__(self) -> None:
        super().__init__()
        self._x, self._scale = any_input(type_matches(f32, f16, bf16)), any_input()
        self._axes, self._epsilon = wrap_const(), wrap_const()
        self._wide = optional("Cast", [self._x], type_matches(f32))
        square = any_of([wrap_type("Pow", [self._wide, wrap_const(2)]), wrap_type("Mul", [self._wide, self._wide])])
        mean = wrap_type("ReduceMean", [square, self._axes], attrs_match(keepdims=1))
        root = wrap_type("Sqrt", [wrap_type("Add", [mean, self._epsilon])])
        inverse = any_of([wrap_type("Reciprocal", [root]), wrap_type("Div", [wrap_const(1), root])])
        normal = any_of([wrap_type("Mul", [self._wide, inverse]), wrap_type("Div", [self._wide, root])])
        self._narrow = optional("Cast", [normal])
        self.register_fusion(wrap_type("Mul", [self._narrow, self._scale]), self._make)

    def _make(self, m: Matcher) -> Node | None:
        values = m.pattern_value_map
        data = values[self._x]
        if (self._wide in values) != (self._narrow in values):
            return None
        if self._narrow in values and values[self._narrow].element_type is not data.element_type:
            return None
        count, number, dims = trailing_axes(data, values[self._axes]), scalar(values[self._epsilon]), dims_of(data)
        if count is None or number is None or dims is None:
            return None
        weights = as_vector(values[self._scale], dims[-count:])
        if weights is None or weights.element_type is not data.element_type:
            return None
        return ops.RMSNormalization(data, weights, axis=-count, epsilon=number)
