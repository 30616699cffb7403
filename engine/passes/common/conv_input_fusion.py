"""`ConvInputFusion`: operations on each channel before a convolution go into its weights and bias.

Let y[c] = a[c] x[p[c]] + b[c] be what products, sums and a Gather of channels compute of x. Then W y + d = W' x + d',
where W'[m, k] is the sum of W[m, c] a[c] over all c with p[c] = k, and d'[m] is d[m] plus the sum of W[m, c] b[c].

Pads are zeros of y, so that b goes into the bias only without pads. With them, x + b / a stays before the convolution:
its zeros are also y's zeros.

Weights and bias are computed in double precision and rounded once. Then W' x is summed of terms as large as |W'| |x|,
where the sums were of |W'| |x + b / a|. So b goes into the bias only if x is known to be bounded, such as bytes, and b
/ a is at most twice the bound: the error is then as for inputs that use their range, and not as for a small difference
of large numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, f32, f64, i8, u8
from engine.ops.conv import ConvSpec
from engine.ops.tensors import Array
from engine.ops.traits import imported_operators_with
from engine.passes.common.conv_bias_fusion import per_channel
from engine.passes.fusion import constant_data, derived_constant, dims_of, integers, operation, replace_by, scalar
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.startup import dataclass

_MAX_FACTOR: Final = 2.0**40
"""Factors beyond it, or below its inverse, could make weights of f32 overflow or lose digits."""
_MAX_NODES: Final = 16
_KEEP_BOUNDS: Final = (
    *imported_operators_with(lambda traits: traits.moves is not None and traits.data == 1),
    "AveragePool", "Cast", "MaxPool",
)  # fmt: skip
"""Operators whose elements are some of their first input, or means of them, or zeros."""


class ConvInputFusion(MatcherPass):
    """Turns Conv(f(x)) into Conv(x), where f multiplies and adds constants to channels, or permutes or repeats them.

    Such as the mean, the scale and the order of colours of an image. A sum stays if the convolution has pads, or if its
    values have no known bound.
    """

    makes = frozenset({"Add"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("Conv"), self.name), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        weights, bias = node.input_value(1).node, node.input_value(2) if node.has_input(2) else None
        is_constant = isinstance(weights, Constant) and (bias is None or isinstance(bias.node, Constant))
        if not is_constant or node.output(0).element_type not in (f32, f64) or ConvSpec.of(node).group != 1:
            return False
        if self.transformation_callback(node):
            return False
        for chain in reversed(list(_chains(node))):
            made = _fused(node, chain)
            if made is not None and replace_by(node, [*chain.nodes, node], made):
                return True
        return False


@dataclass(frozen=True, slots=True)
class _Chain:
    """Nodes before a convolution, and their function of each of its channels: factor * x[source] + offset.

    Attributes:
        x: what the nodes read.
        nodes: the nodes, the one before the convolution first.
        kept: the ones that treat all channels alike; a Gather of channels is exchanged with them.
        factor, offset: [C] f64.
        source: [C], the channel of x.
    """

    x: Output
    nodes: tuple[Node, ...]
    kept: tuple[Node, ...]
    factor: Array
    offset: Array
    source: Array


def _chains(conv: Node) -> Iterator[_Chain]:
    """The chains before a convolution that end with one of the nodes that it can take over, the shortest first."""
    value = conv.input_value(0)
    channels = _channels(value)
    if channels is None:
        return
    chain = _Chain(value, (), (), np.ones(channels), np.zeros(channels), np.arange(channels))
    while chain.x.num_consumers == 1 and len(chain.nodes) < _MAX_NODES:
        longer = _through_product(chain) or _through_gather(chain)
        if longer is not None:
            yield longer
        else:
            longer = _through_others(chain)
        if longer is None:
            return
        chain = longer


def _through_product(chain: _Chain) -> _Chain | None:
    """The chain with the Mul, Div, Add or Sub of a constant before it."""
    node = operation(chain.x, "Mul", "Div", "Add", "Sub")
    if node is None or chain.kept:
        return None
    for index in (0, 1):
        x, other = node.input_value(index), node.input_value(1 - index)
        data = None if isinstance(x.node, Constant) or dims_of(x) != dims_of(chain.x) else per_channel(other, chain.x)
        if data is None or (node.op_type == "Div" and index == 1):
            continue
        numbers = data.astype(np.float64)[chain.source]
        factor, offset = chain.factor, chain.offset
        with np.errstate(all="ignore"):  # non-finite values are refused when they are used
            match node.op_type:
                case "Mul":
                    factor = factor * numbers
                case "Div":
                    factor = factor / numbers
                case "Add":
                    offset = offset + factor * numbers
                case "Sub":
                    offset = offset + (-factor if index == 0 else factor) * numbers
                    factor = factor if index == 0 else -factor
        return replace(chain, x=x, nodes=(*chain.nodes, node), factor=factor, offset=offset)
    return None


def _through_gather(chain: _Chain) -> _Chain | None:
    """The chain with the Gather of channels before it."""
    node = operation(chain.x, "Gather")
    if node is None or ops.attribute(node, "axis") not in (1, 1 - len(dims_of(chain.x) or ())):
        return None
    x, indices = node.input_value(0), integers(node.input_value(1))
    channels = _channels(x)
    if channels is None or indices is None or len(node.input_value(1).shape) != 1:
        return None
    source = np.array(indices)[chain.source]
    if not all(-channels <= index < channels for index in indices):
        return None
    return replace(chain, x=x, nodes=(*chain.nodes, node), source=source % channels)


def _through_others(chain: _Chain) -> _Chain | None:
    """The chain with a node before it that treats all channels alike."""
    node = operation(chain.x, "Cast", "Pad", "Resize")
    x = None if node is None else node.input_value(0)
    before, after = (None, None) if x is None else (dims_of(x), dims_of(chain.x))
    if node is None or x is None or before is None or after is None or len(before) != len(after):
        return None
    if node.op_type != "Cast" and not (before[1].is_static and before[1] == after[1] and _is_spatial(node)):
        return None
    return replace(chain, x=x, nodes=(*chain.nodes, node), kept=(*chain.kept, node))


def _is_spatial(node: Node) -> bool:
    """True if a Resize or Pad names its axes, and neither batch nor channels are among them."""
    if node.op_type == "Resize":
        axes = ops.attribute(node, "axes")
    else:
        axes = integers(node.input_value(3)) if node.has_input(3) else None
    return bool(axes) and all(axis % len(node.output(0).shape) > 1 for axis in axes)


def _channels(value: Output) -> int | None:
    dims = dims_of(value)
    return dims[1].get_length() if dims is not None and len(dims) > 2 and dims[1].is_static else None


def _fused(conv: Node, chain: _Chain) -> list[Node] | None:
    """The nodes that replace a convolution and the chain before it; None if that is not exact enough, or no gain."""
    sizes = np.abs(chain.factor)
    if not np.all((sizes <= _MAX_FACTOR) & (sizes >= 1 / _MAX_FACTOR)) or not np.isfinite(chain.offset).all():
        return None
    channels = _channels(chain.x)
    assert channels is not None
    shifts = chain.offset / chain.factor
    has_offset = bool(chain.offset.any())
    into_bias = has_offset and _is_unpadded(conv) and _is_exact_enough(chain.x, shifts)
    remains = has_offset and not into_bias
    is_same = np.array_equal(chain.source, np.arange(channels))
    if not into_bias and is_same and np.all(chain.factor == 1):
        return None
    added = _by_source(chain, shifts, channels) if remains else None
    if remains and added is None:
        return None
    made: list[Node] = []
    x = chain.x
    for node in reversed(chain.kept):
        made.append(node.clone_with_new_inputs([x, *node.input_values[1:]]))
        x = made[-1].output(0)
    if added is not None:
        dtype = x.element_type.numpy
        made.append(ops.Add(x, Constant(added.astype(dtype).reshape(-1, *[1] * (len(x.shape) - 2)))))
        x = made[-1].output(0)
    weights = conv.input_value(1).node
    assert isinstance(weights, Constant)
    bias = conv.input_value(2) if conv.has_input(2) else None
    if into_bias:
        made.append(_bias(weights, constant_data(bias), chain))
        bias = made[-1].output(0)
    return [*made, ops.create("Conv", [x, _changed(weights, chain, channels), bias], conv.attributes)]


def _bias(weights: Constant, old: Array | None, chain: _Chain) -> Constant:
    """The bias with the contribution of the offsets."""
    sums = weights.data.sum(axis=tuple(range(2, weights.data.ndim)), dtype=np.float64)
    total = sums @ chain.offset + (0.0 if old is None else old.astype(np.float64))
    return Constant(total.astype(weights.element_type.numpy))


def _changed(weights: Constant, chain: _Chain, channels: int) -> Constant:
    """The weights for the channels of x."""
    factor, source = chain.factor, chain.source
    shape = (weights.shape[0], channels, *weights.shape[2:])

    def compute(old: Array) -> Array:
        wide = np.zeros(shape, np.float64)
        for channel, place in enumerate(source):
            wide[:, place] += np.multiply(old[:, channel], factor[channel], dtype=np.float64)
        return wide.astype(old.dtype)

    return derived_constant([weights], shape, compute)


def _by_source(chain: _Chain, shifts: Array, channels: int) -> Array | None:
    """The number added to each channel of x; None if one channel is read with several sums."""
    added = np.zeros(channels)
    added[chain.source] = shifts
    return added if np.array_equal(added[chain.source], shifts) else None


def _is_unpadded(conv: Node) -> bool:
    pads = ConvSpec.of(conv).pads
    return pads is not None and not any(pads)


def _is_exact_enough(x: Output, shifts: Array) -> bool:
    """True if sums of x have no digits less than sums of x + shifts, for x of its whole range."""
    bound = _bound(x)
    return bound is not None and math.isfinite(bound) and bool(np.abs(shifts).max() <= 2 * bound)


def _bound(value: Output) -> float | None:
    """A bound on the size of all elements; None if it is not known."""
    filled = 0.0
    for _ in range(_MAX_NODES):
        if value.element_type is u8 or value.element_type is i8:
            return max(filled, 255.0 if value.element_type is u8 else 128.0)
        node = value.node
        if operation(value, "Clip") is not None:
            ends = [scalar(node.input_value(index)) if node.has_input(index) else None for index in (1, 2)]
            return max(filled, *(math.inf if end is None else abs(end) for end in ends))
        if operation(value, "Pad") is not None and node.has_input(2):
            number = scalar(node.input_value(2))
            filled = max(filled, math.inf if number is None else abs(number))
        is_linear = operation(value, "Resize") is not None and ops.attribute(node, "mode") != "cubic"
        if operation(value, *_KEEP_BOUNDS) is None and not is_linear:
            return None
        value = node.input_value(0)
    return None
