"""`with_half_weights`: a copy of a model that stores its weights in half precision."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Model, Node, PartialShape, TensorType, f16, f32
from engine.ops.tensors import Array

_MIN_ELEMENTS: Final = 16
"""Smaller constants, such as epsilons and scales, stay: they take no space, and may need their precision."""
_MAX_F16: Final = float(np.finfo(np.float16).max)


def with_half_weights(model: Model) -> Model:
    """A copy of `model` whose f32 constants are stored as f16 and cast to f32 where they are read.

    All computation stays f32, on weights rounded to 11 bits; inputs and outputs keep their types. Constants of less
    than 16 elements, and those with a finite value beyond the range of f16, stay as they are. Bodies of control flow
    keep their constants. Linear in the bytes of the constants.
    """
    copy = model.clone()
    for node in copy.ordered_nodes():
        if isinstance(node, Constant) and node.element_type is f32 and _may_be_half(node):
            _store_as_half(node)
    return copy


def _may_be_half(constant: Constant) -> bool:
    if constant.byte_size < _MIN_ELEMENTS * 4:
        return False
    was_loaded = constant.is_loaded
    data = constant.data
    with np.errstate(invalid="ignore"):
        fits = not bool(np.any(np.isfinite(data) & (np.abs(data) > _MAX_F16)))
    if not was_loaded:
        constant.release()
    return fits


def _store_as_half(constant: Constant) -> None:
    targets = constant.output(0).target_inputs
    half = Constant.derived([constant], TensorType(f16, PartialShape(constant.shape)), _rounded)
    half.output(0).name = f"{constant.output(0).name}.f16"
    cast: Node = ops.Cast(half, to=f32.onnx)
    cast.friendly_name = constant.friendly_name
    cast.output(0).name = constant.output(0).name
    for target in targets:
        target.replace_source_output(cast)


def _rounded(data: Array) -> Array:
    return data.astype(np.float16)
