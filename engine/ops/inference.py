"""Type inference of a single node: by the engine's rules, or otherwise by ONNX's own inference, with a cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from engine.errors import ModelError, TypeInferenceError
from engine.ir import UNKNOWN, Constant, Node, OptionalType, SequenceType, TensorType, ValueType, undefined
from engine.ir.inference import set_inferencer
from engine.ir.long_list import LongList
from engine.ops.protos import attribute_to_proto, tensor_to_proto, type_from_proto, type_to_proto
from engine.ops.registry import CANONICAL_VERSIONS, KEPT_DEPRECATED, OpDef, find_op
from engine.ops.rules import check_inputs, fail
from engine.ops.spec import attribute_key, check_spec, has_long_attributes, refuse
from engine.ops.tensors import Array
from engine.startup.onnx_library import onnx

_MEMO_SIZE: Final = 20_000
_MAX_ELEMENTS: Final = 1024
_FEW: Final = 8
_OPSETS: Final = [onnx.OperatorSetIdProto(domain=d, version=v) for d, v in CANONICAL_VERSIONS.items()]

_memo: dict[tuple[object, ...], tuple[ValueType, ...]] = {}


def infer(node: Node) -> Sequence[ValueType]:
    """The output types of `node`; `UNKNOWN` for operators of custom domains.

    Raises `TypeInferenceError` if the operator does not accept its inputs, `OperatorSpecError` if it does not accept
    its attributes.
    """
    op = find_op(node.op_type, node.domain)
    if op is None:
        check_spec(node)
        return (UNKNOWN,) * node.num_outputs
    rule = op.rule
    if rule is None or node.attributes:
        found = _remembered(node, op)
    else:  # mostly faster than computing a key
        check_spec(node)
        if op.agreement is not None:
            op.agreement(node)
        try:
            ruled = rule(node)
        except TypeInferenceError:
            raise
        except ModelError as e:
            fail(node, str(e), e)
        found = _infer_by_schema(node, op) if ruled is None else tuple(ruled)
    if op.restriction is not None:
        op.restriction(node)
    return found


def _remembered(node: Node, op: OpDef) -> tuple[ValueType, ...]:
    key = _key(node, op)
    try:
        found = None if key is None else _memo.get(key)
    except TypeError:  # an unhashable attribute, such as a tensor
        key = found = None
    if found is None:
        found = _infer(node, op)
        if key is not None:
            if len(_memo) >= _MEMO_SIZE:
                _memo.clear()
            _memo[key] = found
    return found


def _key(node: Node, op: OpDef) -> tuple[object, ...] | None:
    """Everything that the types of the outputs depend on; None if they are not kept."""
    if node.attributes and node.has_bodies:  # bodies change, and keeping them would keep their graphs alive
        return None
    if node.attributes and has_long_attributes(node):
        return None
    key = [op, op.rule, *attribute_key(node)]
    for source in node.sources:
        value_type = None if source is None else source.type
        key.append(value_type)
        if source is None or not isinstance(source.node, Constant) or type(value_type) is not TensorType:
            continue
        size, is_vector = value_type.shape.size(), len(value_type.shape) < 2
        if size <= _FEW or (value_type.element_type.is_integral and is_vector):  # such as a shape, axes, or scales
            if size > _MAX_ELEMENTS:
                return None
            data = source.node.data
            key.append(data.tobytes() if data.dtype != object else tuple(data.reshape(-1).tolist()))
    return tuple(key)


def _infer(node: Node, op: OpDef) -> tuple[ValueType, ...]:
    for name, value in node.attributes.items():
        _check_integers(node, name, value)
    check_spec(node)
    if op.agreement is not None:
        op.agreement(node)
    types = _ruled(node, op)
    return _infer_by_schema(node, op) if types is None else tuple(types)


def _check_integers(node: Node, name: str, value: object) -> None:
    """Refuse integers that neither a file nor native code can hold."""
    if type(value) is LongList:
        if value.array is not None or {*map(type, value)} != {int}:
            return
        value = (min(value), max(value))
    elif type(value) is tuple and len(value) > _FEW and {*map(type, value)} == {int}:
        value = (min(value), max(value))
    for item in value if type(value) is tuple else (value,):
        if type(item) is int and not -(1 << 63) <= item < 1 << 63:
            refuse(node, name, value, "integers of 64 bits")


def check(node: Node) -> None:
    """Check `node`, whose output types are known, without ONNX's inference.

    Raises `TypeInferenceError` and `OperatorSpecError` like `infer`.
    """
    check_spec(node)
    op = find_op(node.op_type, node.domain)
    if op is None:
        return
    if op.agreement is not None:
        op.agreement(node)
    if op.rule is not None:
        _ruled(node, op)
    else:
        check_inputs(node, op, node.num_formal_inputs)


def _ruled(node: Node, op: OpDef) -> Sequence[ValueType] | None:
    """The output types by the engine's rule; an error always names the node."""
    if op.rule is None:
        return None
    try:
        return op.rule(node)
    except TypeInferenceError:
        raise
    except ModelError as e:  # such as a negative length
        fail(node, str(e), e)


def _infer_by_schema(node: Node, op: OpDef) -> tuple[ValueType, ...]:
    types = [None if source is None else source.type for source in node.sources]
    return _ask_onnx(node, op, types, _deciding_constants(node))


def _deciding_constants(node: Node) -> dict[int, Array]:
    """The inputs whose values may determine an output's type: small constants such as shapes, axes, sizes, scales."""
    found: dict[int, Array] = {}
    for index, source in enumerate(node.input_values):
        if source is None or not isinstance(source.node, Constant):
            continue
        value_type = source.type
        if not isinstance(value_type, TensorType) or not value_type.shape.is_static or len(value_type.shape) > 1:
            continue
        limit = _MAX_ELEMENTS if value_type.element_type.is_integral else _FEW
        if value_type.element_type.bits >= 8 and value_type.shape.size() <= limit:
            found[index] = source.node.data
    return found


def _ask_onnx(
    node: Node, op: OpDef, types: Sequence[ValueType | None], constants: dict[int, Array]
) -> tuple[ValueType, ...]:
    check_inputs(node, op)
    proto = onnx.NodeProto(op_type=op.name, domain=op.domain)
    known: dict[str, onnx.TypeProto] = {}
    is_complete = True
    for index, value_type in enumerate(types):
        proto.input.append("" if value_type is None else f"x{index}")
        if value_type is not None:
            known[f"x{index}"] = type_to_proto(value_type)
            is_complete &= _is_known(value_type)
    proto.output.extend(f"y{index}" for index in range(node.num_outputs))
    try:
        for name, value in node.attributes.items():
            definition = op.attributes.get(name)
            proto.attribute.append(attribute_to_proto(name, value, definition.kind if definition else None))
        inferred = onnx.shape_inference.infer_node_outputs(
            op.schema,
            proto,
            known,
            {f"x{index}": tensor_to_proto(data) for index, data in constants.items()},
            opset_imports=_opsets(op),
        )
        outputs = [inferred.get(name) for name in proto.output]
        return tuple([UNKNOWN if output is None else type_from_proto(output) for output in outputs])
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        ValueError,
        IndexError,
        RuntimeError,
    ) as e:
        if not is_complete:
            return (UNKNOWN,) * node.num_outputs
        fail(node, _clean(str(e)), e)
    except TypeInferenceError:
        raise
    except ModelError as e:
        fail(node, str(e), e)


def _opsets(op: OpDef) -> list[onnx.OperatorSetIdProto]:
    if (op.domain, op.name) not in KEPT_DEPRECATED:
        return _OPSETS
    return [onnx.OperatorSetIdProto(domain=op.domain, version=op.since_version)]


def _is_known(value_type: ValueType | None) -> bool:
    """Whether the element type is known; for sequences and optionals, their content's."""
    if isinstance(value_type, (SequenceType, OptionalType)):
        return _is_known(value_type.element)
    return value_type is not None and not (isinstance(value_type, TensorType) and value_type.element_type is undefined)


def _clean(message: str) -> str:
    """ONNX's message without its description of the location."""
    message = re.sub(r"\(op_type:[^)]*\):?\s*", "", message)
    message = re.sub(r"\[\w+Error\]\s*", "", message).strip()
    return re.sub(r"\bx(\d+)\b", r"input \1", message) or "ONNX's type inference rejects the node"


set_inferencer(infer)
