"""`LayerNormalizationFusion`: the nine-node form of older exporters becomes the operator."""

from __future__ import annotations

from engine import ops
from engine.ir import Node, bf16, f16, f32
from engine.passes.fusion import FusionPass, as_vector, dims_of, scalar, trailing_axes
from engine.passes.pattern import Matcher, any_input, any_of, attrs_match, type_matches, wrap_const, wrap_type


class LayerNormalizationFusion(FusionPass):
    """Recognises (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias, the bias optional.

    The means are over the last axes, whose shape `scale` and `bias` have. float64 is not fused: the operator computes
    its statistics in float32.
    """

    makes = frozenset({"LayerNormalization"})

    def __init__(self) -> None:
        super().__init__()
        self._x, self._scale, self._bias = any_input(type_matches(f32, f16, bf16)), any_input(), any_input()
        self._axes, self._inner_axes, self._epsilon = wrap_const(), wrap_const(), wrap_const()
        keeps = attrs_match(keepdims=1)
        centered = wrap_type("Sub", [self._x, wrap_type("ReduceMean", [self._x, self._axes], keeps)])
        square = any_of(
            [wrap_type("Pow", [centered, wrap_const(2)]), wrap_type("Mul", [centered, centered])],
        )
        variance = wrap_type("ReduceMean", [square, self._inner_axes], keeps)
        deviation = wrap_type("Sqrt", [wrap_type("Add", [variance, self._epsilon])])
        normal = any_of(
            [
                wrap_type("Div", [centered, deviation]),
                wrap_type("Mul", [centered, wrap_type("Reciprocal", [deviation])]),
            ]
        )
        scaled = wrap_type("Mul", [normal, self._scale])
        self.register_fusion(any_of([wrap_type("Add", [scaled, self._bias]), scaled]), self._make)

    def _make(self, m: Matcher) -> Node | None:
        values = m.pattern_value_map
        data = values[self._x]
        count = trailing_axes(data, values[self._axes])
        number = scalar(values[self._epsilon])
        if count is None or count != trailing_axes(data, values[self._inner_axes]) or number is None:
            return None
        dims = dims_of(data)
        assert dims is not None
        parameters = [as_vector(values[p], dims[-count:]) for p in (self._scale, self._bias) if p in values]
        if any(parameter is None for parameter in parameters):
            return None
        return ops.LayerNormalization(data, *parameters, axis=-count, epsilon=number)
