"""LabelEncoder of `ai.onnx.ml`: a table of keys and values, which ONNX's text decides where its reference departs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine.ir import Node, TensorType, undefined
from engine.ops.spec import OperatorSpec, evaluates_with_spec, refuse, specifies
from engine.ops.tensors import Array
from engine.startup import dataclass

_ML: Final = "ai.onnx.ml"
_FORMS: Final[dict[str, Any]] = {"int64s": np.int64, "floats": np.float32, "strings": object, "tensor": None}
"""The ends of the names of attributes with keys and values, and their types."""
_USUAL: Final[dict[str, Any]] = {"i": -1, "f": -0.0, "O": "_Unused"}
"""The default of values of a kind without an attribute."""


@specifies("LabelEncoder", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelEncoderSpec(OperatorSpec):
    """LabelEncoder-4: another value for each element.

    Attributes:
        keys: the elements with a value of their own, [K], each once: of repeated ones, the last counts. A NaN is equal
            to each NaN.
        values: [K].
        default: the value of all others.
    """

    keys: Array
    values: Array
    default: Any

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        keys, values = _list(node, "keys"), _list(node, "values")
        if len(keys) != len(values):
            refuse(node, "values_*", f"{len(values)} values", f"{len(keys)}, one for each key")
        value_type = node.input_value(0).type
        element = value_type.element_type if isinstance(value_type, TensorType) else undefined
        if element is not undefined and np.dtype(element.numpy) != keys.dtype:
            refuse(node, "keys_*", f"of type {keys.dtype}", f"keys of the input's type, {element.name}")
        last = {_NAN if key != key else key: index for index, key in enumerate(keys.tolist())}
        order = list(last.values())
        given |= {"keys": keys[order], "values": values[order], "default": _default(node, values.dtype)}


_NAN: Final = object()


def _list(node: Node, name: str) -> Array:
    """The keys, or the values, which one attribute has."""
    found = {end: node.attributes[f"{name}_{end}"] for end in _FORMS if f"{name}_{end}" in node.attributes}
    if len(found) != 1:
        names = " and ".join(f"{name}_{end}" for end in found) or "none"
        refuse(node, f"{name}_*", names, f"one of {', '.join(f'{name}_{end}' for end in _FORMS)}")
    ((end, items),) = found.items()
    return np.asarray(items, _FORMS[end]).reshape(-1)


def _default(node: Node, dtype: np.dtype[Any]) -> Any:
    tensor = node.attributes.get("default_tensor")
    if tensor is not None:
        if tensor.size != 1 or tensor.dtype != dtype:
            refuse(node, "default_tensor", f"{tensor.dtype}{list(tensor.shape)}", f"one element of type {dtype}")
        return tensor.reshape(-1)[0]
    names = {"int64": "default_int64", "float32": "default_float", "object": "default_string"}
    return node.attributes.get(names.get(dtype.name, ""), _USUAL[dtype.kind])


@evaluates_with_spec("LabelEncoder", domain=_ML)
def label_encoder(spec: LabelEncoderSpec, x: Array) -> Array:
    """The value of each element of x, in its shape."""
    found = np.full(x.shape, spec.default, spec.values.dtype)
    if not len(spec.keys):
        return found
    if x.dtype == object:
        places = dict(zip(spec.keys.tolist(), range(len(spec.keys)), strict=True))
        flat = np.array([places.get(each, -1) for each in x.reshape(-1).tolist()], np.int64).reshape(x.shape)
        is_known = flat >= 0
    else:
        order = np.argsort(spec.keys)  # NaN last, and searched as the largest
        keys = spec.keys[order]
        at = np.minimum(np.searchsorted(keys, x), len(keys) - 1)
        is_known = (keys[at] == x) | ((keys[at] != keys[at]) & (x != x))
        flat = order[at]
    found[is_known] = spec.values[flat[is_known]]
    return found
