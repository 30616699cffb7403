"""`ScaleShiftFusion`: a batch normalization not fused into a convolution becomes one step with its consumers."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.ir import Constant, Node, Output, f32
from engine.ops.internal import Activation, ScaleShift, activation_of
from engine.ops.normalization import BatchNormalizationSpec, is_infinite, scale_and_shift
from engine.passes import MatcherPass
from engine.passes.fusion import constant_data, dims_of, replace_by
from engine.passes.pattern import Matcher, attrs_match, wrap_type
from engine.startup import dataclass

Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(slots=True)
class _Chain:
    """The nodes fused so far, and their function: `activation(x * scale + shift)`."""

    nodes: list[Node]
    scale: Vector
    shift: Vector
    activation: Activation | None = None

    @property
    def end(self) -> Output:
        return self.nodes[-1].output(0)


class ScaleShiftFusion(MatcherPass):
    """Turns BatchNormalization with constant statistics into `engine.ScaleShift`.

    Following products and sums with per-channel constants, if they are the only consumers, are folded into its factors,
    which are computed in double precision and rounded once; an activation after them is fused too.
    """

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type("BatchNormalization", predicate=attrs_match(training_mode=0))
        self.register_matcher(Matcher(root, "ScaleShiftFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node):
            return False
        chain = _start(node)
        if chain is None:
            return False
        while _extend(chain):
            pass
        scale, shift = (Constant(each.astype(np.float32)) for each in (chain.scale, chain.shift))
        made = ScaleShift(node.input_value(0), scale, shift, activation=chain.activation)
        return replace_by(chain.nodes[-1], chain.nodes, [made])


def _start(node: Node) -> _Chain | None:
    dims = dims_of(node.input_value(0))
    parameters = [constant_data(node.input_value(index)) for index in range(1, 5)]
    if dims is None or len(dims) < 2 or node.output(0).element_type is not f32 or node.num_outputs != 1:
        return None
    if any(each is None or each.dtype != np.float32 for each in parameters):
        return None
    given = [each for each in parameters if each is not None]
    folded = scale_and_shift(given, BatchNormalizationSpec.of(node).epsilon, np.float32)
    return None if folded is None else _Chain([node], *folded)


def _extend(chain: _Chain) -> bool:
    """Fuse the only consumer of the end of the chain, if it fits."""
    targets = chain.end.target_inputs
    if chain.activation is not None or len(targets) != 1:
        return False
    node = targets[0].node
    if not node.domain and node.op_type in ("Mul", "Add"):
        other = _by_channel(chain, node.input_value(1 - targets[0].index))
        if other is None:
            return False
        with np.errstate(all="ignore"):
            if node.op_type == "Add":
                scale, shift = chain.scale, chain.shift + other
            else:
                scale, shift = chain.scale * other, chain.shift * other
        if is_infinite(scale, np.float32) or is_infinite(shift, np.float32):
            return False
        chain.scale, chain.shift = scale, shift
    else:
        chain.activation = None if targets[0].index else activation_of(node)
        if chain.activation is None:
            return False
    chain.nodes.append(node)
    return True


def _by_channel(chain: _Chain, value: Output) -> Vector | None:
    """The data of a constant with one number per channel, or a single one; None for any other value."""
    data, rank = constant_data(value), len(chain.end.shape)
    if data is None or data.ndim > rank or data.size not in (1, chain.scale.size):
        return None
    shape = (1,) * (rank - data.ndim) + data.shape
    if any(length != 1 for axis, length in enumerate(shape) if axis != 1):
        return None
    return np.broadcast_to(data.reshape(-1), chain.scale.shape).astype(np.float64)
