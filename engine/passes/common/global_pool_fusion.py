"""`GlobalPoolFusion`: pooling whose window covers the whole image becomes the operator."""

from __future__ import annotations

from engine import ops
from engine.ir import Node
from engine.ops.pool import PoolSpec
from engine.passes.fusion import FusionPass, dims_of
from engine.passes.pattern import Matcher, any_input, wrap_type

_GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}


class GlobalPoolFusion(FusionPass):
    """Turns AveragePool and MaxPool without padding, and with one window that covers the image, into global ones.

    A window larger than the image, which `ceil_mode` allows, counts as covering it: EfficientNet ends with one. MaxPool
    of integers stays: GlobalMaxPool has no integers.
    """

    makes = frozenset({"GlobalAveragePool", "GlobalMaxPool"})

    def __init__(self) -> None:
        super().__init__()
        self._x = any_input()
        root = wrap_type(list(_GLOBAL), [self._x])
        self.register_fusion(root, self._make)

    def _make(self, m: Matcher) -> Node | None:
        node, data = m.match_root, m.pattern_value_map[self._x]
        spec = PoolSpec.of(node)
        dims, result = dims_of(data), dims_of(node.output(0))
        if not data.element_type.is_real or dims is None or result is None or any(dim != 1 for dim in result[2:]):
            return None
        if spec.pads is None or any(spec.pads) or any(step != 1 for step in spec.dilations):
            return None
        sizes = zip(dims[2:], spec.kernel_shape, strict=True)
        if not all(dim.is_static and dim.get_length() <= size for dim, size in sizes):
            return None
        return ops.create(_GLOBAL[node.op_type], [data])
