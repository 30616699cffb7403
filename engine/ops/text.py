"""String operators: type rules and evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.ir import Node, PartialShape, TensorType, ValueType, as_dimension, string
from engine.ops.registry import evaluates, get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.tensors import Array


@infers("StringNormalizer")
def _infer_string_normalizer(node: Node) -> Sequence[ValueType]:
    """[C] or [1, C], of which stop words remove some; ONNX rejects an unknown first dimension."""
    check_inputs(node, get_op("StringNormalizer"))
    shape = tensor_type(node, 0).shape
    if shape.rank.is_dynamic:
        return (TensorType(string, shape),)
    if len(shape) not in (1, 2) or (len(shape) == 2 and not shape[0].accepts(1)):
        fail(node, f"X must have shape [C] or [1, C], got {shape}")
    # If every string is a stop word, one empty string remains.
    rest = as_dimension("1..") if node.attributes.get("stopwords") else shape[-1]
    return (TensorType(string, PartialShape([rest] if len(shape) == 1 else [1, rest])),)


@evaluates("StringConcat")
def string_concat(x: Array, y: Array) -> Array:
    """Each string of x followed by that of y (ONNX StringConcat-20).

    Arrays of numpy's own text would give every element the memory of the longest.
    """
    return np.asarray(np.add(x.astype(object), y.astype(object)), object)
