"""Decompositions of operators into simpler ones, for devices that lack them."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Node, f32
from engine.ops import attribute
from engine.ops.normalization import BatchNormalizationSpec, MeanVarianceNormalizationSpec, scale_and_shift
from engine.passes.fusion import FusionPass, charge, dims_of
from engine.passes.pattern import Matcher, any_input, attrs_match, wrap_const, wrap_type


class BatchNormalizationDecomposition(FusionPass):
    """Decomposes a BatchNormalization with constants of the type of x into a product and a sum per channel."""

    makes = frozenset({"Add", "Mul"})

    removes = frozenset({"BatchNormalization"})

    def __init__(self) -> None:
        super().__init__()
        self._x, self._parameters = any_input(), [wrap_const() for _ in range(4)]
        root = wrap_type("BatchNormalization", [self._x, *self._parameters], attrs_match(training_mode=0))
        self.register_fusion(root, self._make)

    def _make(self, m: Matcher) -> list[Node] | None:
        data = m.pattern_value_map[self._x]
        dims = dims_of(data)
        nodes = [m.pattern_value_map[p].node for p in self._parameters]
        constants = [node for node in nodes if isinstance(node, Constant)]
        if dims is None or len(dims) < 2 or m.match_root.num_outputs != 1:
            return None
        if any(constant.output(0).element_type is not data.element_type for constant in constants):
            return None  # it would be rounded to the type of x
        charge(constants, 2 * constants[0].byte_size)
        shape, dtype = (-1, *(1,) * (len(dims) - 2)), data.element_type.numpy
        folded = scale_and_shift(
            [constant.data for constant in constants], BatchNormalizationSpec.of(m.match_root).epsilon, dtype
        )
        if folded is None:
            return None
        factor, shift = folded
        product = ops.Mul(data, Constant(factor.reshape(shape).astype(dtype)))
        return [product, ops.Add(product, Constant(shift.reshape(shape).astype(dtype)))]


class SwishDecomposition(FusionPass):
    """Decomposes `Swish` into x * Sigmoid(alpha * x).

    If a device has a kernel for Swish, the nodes that it refuses stay: `SwishFusion` would undo the decomposition.
    """

    makes = frozenset({"Mul", "Sigmoid"})

    removes = frozenset({"Swish"})

    def __init__(self) -> None:
        super().__init__()
        x = any_input()

        def make(m: Matcher) -> list[Node] | None:
            config = self.config
            if config is not None and config.claims("Swish") and not config.is_enabled(self, False):
                return None
            value = m.pattern_value_map[x]
            alpha = float(attribute(m.match_root, "alpha"))
            made: list[Node] = [] if alpha == 1 else [ops.Mul(value, Constant(alpha, value.element_type))]
            gate = ops.Sigmoid(made[0] if made else value)
            return [*made, gate, ops.Mul(value, gate)]

        self.register_fusion(wrap_type("Swish", [x]), make)


class MeanVarianceNormalizationDecomposition(FusionPass):
    """Decomposes `MeanVarianceNormalization` into means and differences, in at least f32 precision.

    The variance is the mean of squared differences; ONNX's definition subtracts squares, with cancellation error.
    """

    makes = frozenset({"Add", "Cast", "Div", "Mul", "ReduceMean", "Sqrt", "Sub"})

    removes = frozenset({"MeanVarianceNormalization"})

    def __init__(self) -> None:
        super().__init__()
        self._x = any_input()
        self.register_fusion(wrap_type("MeanVarianceNormalization", [self._x]), self._make)

    def _make(self, m: Matcher) -> list[Node]:
        spec = MeanVarianceNormalizationSpec.of(m.match_root)
        value, axes = m.pattern_value_map[self._x], Constant(np.array(spec.axes, np.int64))
        made: list[Node] = []
        if value.element_type.bits < f32.bits:
            made.append(ops.Cast(value, to=f32))
        wide = made[-1].output(0) if made else value
        mean = ops.ReduceMean(wide, axes)
        difference = ops.Sub(wide, mean)
        variance = ops.ReduceMean(ops.Mul(difference, difference), axes)
        deviation = ops.Add(ops.Sqrt(variance), Constant(spec.ADDED, wide.element_type))
        made += [mean, difference, variance.input_value(0).node, variance, deviation.input_value(0).node, deviation]
        made.append(ops.Div(difference, deviation))
        if wide is not value:
            made.append(ops.Cast(made[-1], to=value.element_type))
        return made
