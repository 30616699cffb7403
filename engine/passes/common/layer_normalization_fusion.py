"""`LayerNormalizationFusion`: the nine operators of older exporters become the operator."""

from __future__ import annotations

from engine import ops
from engine.ir import Node, bf16, f16, f32
from engine.passes.fusion import FusionPass, as_vector, dims_of, scalar, trailing_axes
from engine.passes.pattern import Matcher, any_input, any_of, attrs_match, type_matches, wrap_const, wrap_type


class LayerNormalizationFusion(FusionPass):
    """Recognises (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias, the bias optional.

    The means go over the last axes, whose shape `scale` and `bias` have. float64 stays as it is: the operator
    computes its statistics in float32.
    """

    def __init__(self) -> None:
        super().__init__()
        x, scale, bias = any_input(type_matches(f32, f16, bf16)), any_input(), any_input()
        axes, inner_axes, epsilon = wrap_const(), wrap_const(), wrap_const()
        keeps = attrs_match(keepdims=1)
        centered = wrap_type("Sub", [x, wrap_type("ReduceMean", [x, axes], keeps)])
        square = any_of(
            [wrap_type("Pow", [centered, wrap_const(2)]), wrap_type("Mul", [centered, centered])],
        )
        variance = wrap_type("ReduceMean", [square, inner_axes], keeps)
        deviation = wrap_type("Sqrt", [wrap_type("Add", [variance, epsilon])])
        normal = any_of(
            [
                wrap_type("Div", [centered, deviation]),
                wrap_type("Mul", [centered, wrap_type("Reciprocal", [deviation])]),
            ]
        )
        scaled = wrap_type("Mul", [normal, scale])

        def make(m: Matcher) -> Node | None:
            values = m.pattern_value_map
            data = values[x]
            count = trailing_axes(data, values[axes])
            number = scalar(values[epsilon])
            if count is None or count != trailing_axes(data, values[inner_axes]) or number is None:
                return None
            dims = dims_of(data)
            assert dims is not None
            parameters = [as_vector(values[p], dims[-count:]) for p in (scale, bias) if p in values]
            if any(parameter is None for parameter in parameters):
                return None
            return ops.LayerNormalization(data, *parameters, axis=-count, epsilon=number)

        self.register_fusion(any_of([wrap_type("Add", [scaled, bias]), scaled]), make)
