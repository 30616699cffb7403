"""`GroupNormalizationFusion`: group normalization through InstanceNormalization becomes the operator."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, bf16, f16, f32
from engine.ops.normalization import GroupNormalizationSpec
from engine.ops.tensors import Array
from engine.passes.fusion import FusionPass, constant_data, dims_of, operation, same_length, same_lengths
from engine.passes.pattern import Matcher, any_input, any_of, attrs_match, type_matches, wrap_const, wrap_type


class GroupNormalizationFusion(FusionPass):
    """Recognises Reshape[N, G, -1] -> InstanceNormalization(1, 0) -> Reshape back (-> Mul -> Add).

    Scale and bias are constants with one value per channel. float64 is not fused: the operator computes in float32.
    """

    makes = frozenset({"GroupNormalization"})

    def __init__(self) -> None:
        super().__init__()
        self._x, self._back = any_input(type_matches(f32, f16, bf16)), any_input()
        self._scale, self._bias = wrap_const(), wrap_const()
        self._groups = wrap_type("Reshape", [self._x, any_input()], attrs_match(allowzero=0))
        self._normal = wrap_type("InstanceNormalization", [self._groups, wrap_const(1), wrap_const(0)])
        self._whole = wrap_type("Reshape", [self._normal, self._back])
        affine = wrap_type("Add", [wrap_type("Mul", [self._whole, self._scale]), self._bias])
        self.register_fusion(any_of([affine, self._whole]), self._make)

    def _make(self, m: Matcher) -> Node | None:
        values = m.pattern_value_map
        data = values[self._x]
        count = _group_count(data, values[self._groups])
        if count is None or not _is_shape_of(data, values[self._whole], values[self._back]):
            return None
        channels = data.shape[1].get_length()
        dtype = data.element_type.numpy
        weights, shift = np.ones(channels, dtype), np.zeros(channels, dtype)
        if self._scale in values:
            found = [_per_channel(values[p], data, channels) for p in (self._scale, self._bias)]
            if found[0] is None or found[1] is None:
                return None
            weights, shift = found[0], found[1]
        epsilon = GroupNormalizationSpec.of(values[self._normal].node).epsilon
        return ops.GroupNormalization(data, Constant(weights), Constant(shift), num_groups=count, epsilon=epsilon)


def _group_count(data: Output, groups: Output) -> int | None:
    """G, if `groups` is `data` reshaped to [N, G, rest] with the same N."""
    dims, grouped = dims_of(data), dims_of(groups)
    if dims is None or grouped is None or len(dims) < 3 or len(grouped) != 3 or dims[1].is_dynamic:
        return None
    target = constant_data(groups.node.input_value(1))
    keeps_batch = same_length(dims[0], grouped[0]) or (target is not None and int(target[0]) == 0)
    if not keeps_batch or grouped[1].is_dynamic or dims[1].get_length() % max(grouped[1].get_length(), 1):
        return None
    return grouped[1].get_length()


def _is_shape_of(data: Output, result: Output, target: Output) -> bool:
    """True if `result`, reshaped to `target`, has the shape of `data`."""
    shape = operation(target, "Shape")
    if shape is not None and shape.input_value(0) == data and not {"start", "end"} & shape.attributes.keys():
        return True
    dims, wanted = dims_of(data), dims_of(result)
    return dims is not None and wanted is not None and same_lengths(dims, wanted)


def _per_channel(value: Output, data: Output, channels: int) -> Array | None:
    """A constant [C, 1, ...], with or without leading dimensions of 1, as [C]."""
    constant = constant_data(value)
    assert constant is not None
    spatial = len(data.shape) - 2
    shape = constant.shape
    if len(shape) <= spatial or shape[-spatial:] != (1,) * spatial or constant.size != channels:
        return None
    if shape[-spatial - 1] != channels:
        return None
    return np.ascontiguousarray(constant.reshape(channels))
