"""The optimizers of `ai.onnx.preview.training` as arithmetic, for `OperatorDecomposition`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from engine import ops
from engine.ir import Constant, Node, Output
from engine.ops import attribute


class _Step:
    """The learning rate R, the count T, and groups of tensors: all X, then all G, and so on."""

    def __init__(self, node: Node, groups: int) -> None:
        self.node, self.rate, self.count = node, node.input_value(0), node.input_value(1)
        values = [node.input_value(index) for index in range(2, node.num_inputs)]
        size = len(values) // groups
        self.tensors = list(zip(*(values[g * size : (g + 1) * size] for g in range(groups)), strict=True))
        self.is_plain = len({value.element_type for value in (self.rate, *values)}) == 1

    def number(self, value: float) -> Output:
        """A constant of the element type of R."""
        return Constant(value, self.rate.element_type).output(0)

    def given(self, name: str) -> float:
        """The value of a float attribute of the node."""
        return float(attribute(self.node, name))

    def has_begun(self) -> Output:
        """Whether T is above 0."""
        return ops.Greater(self.count, Constant(0, self.count.element_type)).output(0)

    def real_count(self) -> Output:
        """T in the type of R."""
        return ops.Cast(self.count, to=self.rate.element_type).output(0)

    def regularized(self, x: Output, gradient: Output) -> Output:
        """The gradient plus the gradient of the norm of `x`."""
        return ops.Add(ops.Mul(x, self.number(self.given("norm_coefficient"))), gradient).output(0)


def _adagrad(node: Node) -> Sequence[Output] | None:
    step = _Step(node, 3)
    if not step.is_plain:
        return None
    decay = ops.Mul(step.real_count(), step.number(step.given("decay_factor")))
    rate = ops.Div(step.rate, ops.Add(decay, step.number(1)))
    xs, sums = [], []
    for x, gradient, old in step.tensors:
        whole = step.regularized(x, gradient)
        squares = ops.Add(old, ops.Mul(whole, whole))
        adaptive = ops.Add(ops.Sqrt(squares), step.number(step.given("epsilon")))
        xs.append(ops.Sub(x, ops.Div(ops.Mul(rate, whole), adaptive)).output(0))
        sums.append(squares.output(0))
    return [*xs, *sums]


def _adam(node: Node) -> Sequence[Output] | None:
    step = _Step(node, 4)
    if not step.is_plain:
        return None
    alpha, beta = step.given("alpha"), step.given("beta")
    count, one = step.real_count(), step.number(1)
    root = ops.Sqrt(ops.Sub(one, ops.Pow(step.number(beta), count)))
    advanced = ops.Div(ops.Mul(step.rate, root), ops.Sub(one, ops.Pow(step.number(alpha), count)))
    rate = ops.Where(step.has_begun(), advanced, step.rate)
    xs, means, squares = [], [], []
    for x, gradient, old_mean, old_square in step.tensors:
        whole = step.regularized(x, gradient)
        mean = ops.Add(ops.Mul(old_mean, step.number(alpha)), ops.Mul(whole, step.number(1 - alpha)))
        square = ops.Add(ops.Mul(old_square, step.number(beta)), ops.Mul(ops.Mul(whole, whole), step.number(1 - beta)))
        deviation = ops.Add(ops.Sqrt(square), step.number(step.given("epsilon")))
        moved = ops.Sub(x, ops.Div(ops.Mul(rate, mean), deviation))
        xs.append(ops.Mul(moved, step.number(1 - step.given("norm_coefficient_post"))).output(0))
        means.append(mean.output(0))
        squares.append(square.output(0))
    return [*xs, *means, *squares]


def _momentum(node: Node) -> Sequence[Output] | None:
    step, mode = _Step(node, 3), attribute(node, "mode")
    if not step.is_plain or mode not in ("standard", "nesterov"):
        return None
    alpha = step.number(step.given("alpha"))
    beta = ops.Where(step.has_begun(), step.number(step.given("beta")), step.number(1))
    xs, momenta = [], []
    for x, gradient, old in step.tensors:
        whole = step.regularized(x, gradient)
        momentum = ops.Add(ops.Mul(old, alpha), ops.Mul(beta, whole)).output(0)
        way = momentum if mode == "standard" else ops.Add(whole, ops.Mul(momentum, alpha)).output(0)
        xs.append(ops.Sub(x, ops.Mul(step.rate, way)).output(0))
        momenta.append(momentum)
    return [*xs, *momenta]


TRAINING_RULES: Final[dict[str, Callable[[Node], Sequence[Output] | None]]] = {
    "Adagrad": _adagrad,
    "Adam": _adam,
    "Momentum": _momentum,
}
