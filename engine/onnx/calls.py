"""Checks node protos against their operators' schemas, before they reach ONNX's C++, which does not."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from engine.errors import ModelError, ModelReadError, UnsupportedError
from engine.onnx.attributes import attribute_type
from engine.onnx.foreign import is_known
from engine.onnx.functions import OPSET_TAG, describe
from engine.onnx.hazards import check_values
from engine.onnx.opsets import resolve_version
from engine.onnx.stored_tensors import check_tensor
from engine.ops import CANONICAL_VERSIONS
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

_TENSOR: Final = onnx.AttributeProto.TENSOR


@dataclass(frozen=True, slots=True)
class _Rules:
    """A schema's rules for a call; `attributes` are types by name, `single` the inputs that cannot be omitted."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    single: tuple[int, ...]
    attributes: Mapping[str, int]
    required: frozenset[str]


class CallChecker:
    """Checks nodes of a model whose opset versions are `opsets`; operators that are not ONNX's always pass."""

    __slots__ = ("_known", "_opsets")

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = opsets
        self._known: dict[tuple[str, str, int], _Rules] = {}

    def check(self, node: onnx.NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Raise `ModelReadError` if its operator does not allow the counts or the attributes of `node`.

        Raises the errors of `resolve_version` if the operator is unknown.
        """
        domain = node.domain
        if domain == "ai.onnx":
            domain = ""
        if domain not in CANONICAL_VERSIONS or is_known(node.op_type, domain):
            return
        key = (node.op_type, domain, opset_of(node, domain, self._opsets))
        rules = self._known.get(key)
        if rules is None:
            rules = self._known[key] = _checked_rules(node, key)
        if not rules.inputs[0] <= len(inputs) <= rules.inputs[1]:
            raise _wrong_count(node, "inputs", len(inputs), rules.inputs)
        if not rules.outputs[0] <= len(outputs) <= rules.outputs[1]:
            raise _wrong_count(node, "outputs", len(outputs), rules.outputs)
        if "" in inputs:
            for index in rules.single:
                if index < len(inputs) and not inputs[index]:
                    raise ModelReadError(f"{describe(node)}: input {index} is omitted, and {node.op_type} requires it")
        if node.attribute or rules.required:
            _check_attributes(node, rules)


def opset_of(node: onnx.NodeProto, domain: str, opsets: Mapping[str, int]) -> int:
    """The opset of `node`: the model's, or the opset of the function from which the node was inlined."""
    for entry in node.metadata_props:
        if entry.key == OPSET_TAG:
            return int(entry.value)
    opset = opsets.get(domain)
    if opset is None:
        raise ModelReadError(f"{describe(node)}: the model imports no opset of domain `{domain or 'ai.onnx'}`")
    return opset


def _checked_rules(node: onnx.NodeProto, key: tuple[str, str, int]) -> _Rules:
    try:
        return _rules(*key)
    except (ModelError, UnsupportedError) as e:
        raise type(e)(f"{describe(node)}: {e}") from e


@functools.lru_cache(maxsize=4096)
def _rules(op_type: str, domain: str, opset: int) -> _Rules:
    schema = onnx.defs.get_schema(op_type, resolve_version(op_type, domain, opset), domain)
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return _Rules(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(index for index, port in enumerate(schema.inputs) if port.option == single),
        {name: int(attribute.type.value) for name, attribute in schema.attributes.items()},  # type: ignore[attr-defined]
        frozenset(name for name, attribute in schema.attributes.items() if attribute.required),
    )


def _check_attributes(node: onnx.NodeProto, rules: _Rules) -> None:
    given: set[str] = set()
    for attribute in node.attribute:
        name = attribute.name
        kind = attribute.type or attribute_type(attribute)
        expected = rules.attributes.get(name)
        if name in given:
            raise ModelReadError(f"{describe(node)}: attribute `{name}` is given twice")
        given.add(name)
        if expected is None and not name.startswith("__"):  # ONNX's own tools add attributes with this prefix
            known = ", ".join(sorted(rules.attributes)) or "none"
            raise ModelReadError(f"{describe(node)} has no attribute `{name}` at the model's opset; it has {known}")
        if kind != expected and expected is not None:
            raise ModelReadError(
                f"{describe(node)}: attribute `{name}` is {_type_name(kind)}; expected {_type_name(expected)}"
            )
    check_values(node)
    for attribute in node.attribute:
        if attribute.type == _TENSOR:
            check_tensor(attribute.t)
    for name in rules.required - given:
        raise ModelReadError(f"{describe(node)}: required attribute `{name}` is missing")


def _type_name(kind: int) -> str:
    known = onnx.AttributeProto.AttributeType.values()
    return onnx.AttributeProto.AttributeType.Name(kind) if kind in known else f"of type {kind}"


def _wrong_count(node: onnx.NodeProto, what: str, count: int, expected: tuple[int, int]) -> ModelReadError:
    low, high = expected
    text = str(low) if low == high else f"{low} or more" if high >= 2**31 - 1 else f"{low} to {high}"
    return ModelReadError(f"{describe(node)} has {count} {what}; expected {text}")
