"""`model_to_proto`: a `Model` as valid ONNX, at the lowest opset that can express it."""

from __future__ import annotations

from typing import Any, Final

from engine.errors import ModelWriteError
from engine.ir import Constant, MapType, Model, OptionalType, SequenceType, SparseTensorType, ValueType
from engine.onnx.annotations import ACCURACY_LEVEL
from engine.onnx.downgrade import lowest_opsets, opset_range
from engine.onnx.graph_writer import ExportContext, GraphWriter, TensorWriter
from engine.onnx.naming import Scope
from engine.onnx.variables import metadata_of
from engine.ops import CANONICAL_VERSIONS, find_op
from engine.ops.internal import as_onnx
from engine.ops.protos import tensor_to_proto
from engine.startup.onnx_library import onnx

__all__ = ["model_to_proto"]

PRODUCER: Final = "engine"
MAX_INLINE_BYTES: Final = (1 << 31) - (64 << 20)
"""The most bytes of weights in one proto: 2 GB minus the size of a graph of a million nodes."""

_LOWEST_OPSET: Final = 13  # below it, current runtimes lack types (onnxruntime: Max-6 of f64)
_LOWEST_IR: Final = 4  # initializers that are not inputs
_IR_OF_METADATA: Final = 10
_IR_OF_TYPE: Final = {
    "f8e4m3fn": 9, "f8e4m3fnuz": 9, "f8e5m2": 9, "f8e5m2fnuz": 9, "i4": 10, "u4": 10, "f4e2m1": 11, "f8e8m0": 12,
    "i2": 13, "u2": 13, "f6e2m3": 14, "f6e3m2": 14,
}  # fmt: skip


def model_to_proto(model: Model) -> onnx.ModelProto:
    """`model` as a `ModelProto`, including weights.

    The opset is the lowest from 13 on at which every node can be expressed, with its IR version. Captures become
    the implicit references of ONNX, friendly names the nodes' names; "affinity" and "metadata" of `rt_info` become
    metadata. Raises `ModelWriteError` if something cannot be expressed in ONNX, and above 2 GB.
    """
    weights = weight_bytes(model)
    if weights > MAX_INLINE_BYTES:
        raise ModelWriteError(
            f"model `{model.name}` has {weights} bytes of weights, but a ModelProto holds at most 2 GB; "
            "write it to a path, where weights go to a file beside it"
        )
    return export_proto(model, lambda constant, name, _: tensor_to_proto(constant.data, name))


def export_proto(model: Model, write_tensor: TensorWriter) -> onnx.ModelProto:
    """`model` as a portable proto: `write_tensor` writes its tensors, and internal operators are decomposed.

    Raises `ModelWriteError`.
    """
    model = as_onnx(model)
    scope = Scope(model, strict=True)
    opsets = _opsets(model, scope)
    proto = onnx.ModelProto(producer_name=PRODUCER)
    proto.graph.CopyFrom(GraphWriter(ExportContext(opsets, write_tensor), scope).write())
    for domain, version in sorted(opsets.items()):
        proto.opset_import.add(domain=domain, version=version)
    _describe(proto, model)
    proto.ir_version = _ir_version(model, proto)
    return proto


def _opsets(model: Model, scope: Scope) -> dict[str, int]:
    """The lowest opsets that express the nodes of the model and the Identities that writing it adds."""
    opsets = lowest_opsets(model)
    for part in scope.walk():
        for identity in part.identities.values():
            opsets[""] = max(opsets.get("", 1), opset_range(identity)[0])
        for node in part.model.ordered_nodes():
            if node.domain not in CANONICAL_VERSIONS:
                op = find_op(node.op_type, node.domain)
                least = 1 if op is None else op.since_version
                opsets[node.domain] = max(model.opset_imports.get(node.domain, 1), least, opsets.get(node.domain, 1))
    opsets[""] = max(opsets.get("", 1), _LOWEST_OPSET)
    return opsets


def _describe(proto: onnx.ModelProto, model: Model) -> None:
    """Write the model's metadata, including the metadata of the file from which it was read."""
    about: dict[str, Any] = model.rt_info.get("onnx") or {}
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        if about.get(field):
            setattr(proto, field, about[field])
    proto.graph.doc_string = about.get("graph_doc_string", "")
    for key, value in metadata_of(model).items():
        proto.metadata_props.add(key=key, value=value)
    for key, value in about.get("graph_metadata", {}).items():
        proto.graph.metadata_props.add(key=key, value=value)
    names = {value.name for value in (*proto.graph.input, *proto.graph.initializer)}
    names.update(name for node in proto.graph.node for name in node.output)
    for tensor, parameters in about.get("quantization_annotation", {}).items():
        if tensor in names and names.issuperset(parameters.values()):
            annotation = proto.graph.quantization_annotation.add(tensor_name=tensor)
            for key, value in parameters.items():
                annotation.quant_parameter_tensor_names.add(key=key, value=value)


def _ir_version(model: Model, proto: onnx.ModelProto) -> int:
    version = max(_LOWEST_IR, onnx.helper.find_min_ir_version_for(list(proto.opset_import), ignore_unknown=True))
    if proto.graph.quantization_annotation:
        version = max(version, 5)
    pending = [model]
    while pending:
        for node in pending.pop().ordered_nodes():
            for output in node.outputs:
                version = max(version, _ir_of(output.type))
            info = node.annotations
            if info and ("affinity" in info or ACCURACY_LEVEL in info or info.get("metadata")):
                version = max(version, _IR_OF_METADATA)
            pending.extend(node.bodies.values())
    return max(version, _IR_OF_METADATA) if proto.graph.metadata_props else version


def _ir_of(value_type: ValueType | None) -> int:
    if value_type is None:
        return 0
    if isinstance(value_type, OptionalType):
        return max(8, _ir_of(value_type.element))
    if isinstance(value_type, SequenceType):
        return _ir_of(value_type.element)
    if isinstance(value_type, MapType):
        return _ir_of(value_type.value)
    floor = 8 if isinstance(value_type, SparseTensorType) else 0
    return max(floor, _IR_OF_TYPE.get(value_type.element_type.name, 0))


def weight_bytes(model: Model) -> int:
    """Bytes of all constants, including bodies; strings count 0, since only writing finds their size."""
    pending, total = [model], 0
    while pending:
        for node in pending.pop().ordered_nodes():
            if isinstance(node, Constant):
                total += node.byte_size
            pending.extend(node.bodies.values())
    return total
