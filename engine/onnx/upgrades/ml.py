"""Upgrades of operators of the domain `ai.onnx.ml`."""

from __future__ import annotations

from typing import Any

from engine.ir import i64, string
from engine.onnx.upgrades.call import OldCall, upgrade


@upgrade("LabelEncoder", since=1, to=2, domain="ai.onnx.ml")
def _keys_and_values(call: OldCall) -> OldCall:
    """There was one list of strings, with their positions as the integers; the type of X selected the direction."""
    texts = tuple(call.attributes.get("classes_strings", ()))
    positions = tuple(range(len(texts)))
    element_type = call.element_type(0)
    if element_type is string:
        default = call.integer("default_int64", -1)
        mapping: dict[str, Any] = {"keys_strings": texts, "values_int64s": positions, "default_int64": default}
    elif element_type is i64:
        default_text = call.text("default_string", "_Unused")
        mapping = {"keys_int64s": positions, "values_strings": texts, "default_string": default_text}
    else:
        call.invalid(f"X is {element_type}; expected string or i64")
    return call.at(2, drop=["classes_strings", "default_int64", "default_string"], **mapping)
