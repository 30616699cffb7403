"""`write_model` and `model_to_proto`: a `Model` as valid ONNX, at the lowest opset that can express it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import onnx
import onnx.helper

from engine.errors import ModelWriteError
from engine.ir import Constant, ElementType, MapType, Model, OptionalType, SequenceType, SparseTensorType, ValueType
from engine.onnx.downgrade import lowest_opsets, opset_range
from engine.onnx.graph_writer import ExportContext, GraphWriter, TensorWriter
from engine.onnx.naming import Scope
from engine.onnx.wire import encode_length
from engine.ops import CANONICAL_VERSIONS
from engine.ops.internal import as_onnx
from engine.ops.protos import tensor_to_proto, tensor_to_raw

__all__ = ["model_to_proto", "write_model"]

Destination: TypeAlias = "str | os.PathLike[str] | BinaryIO"

PRODUCER: Final = "engine"
_MAX_PROTO: Final = (1 << 31) - 1
_ROOM_FOR_GRAPH: Final = 64 << 20  # what a graph of a million nodes takes beside its weights
_SPLICED_BYTES: Final = 1024
_PAGE: Final = 4096
_ALIGNMENT: Final = 64
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9

_LOWEST_OPSET: Final = 13  # below it, runtimes of today leave out types (onnxruntime: Max-6 of f64)
_LOWEST_IR: Final = 4  # initializers that are no inputs
_IR_OF_METADATA: Final = 10
_IR_OF_TYPE: Final = {
    "f8e4m3fn": 9, "f8e4m3fnuz": 9, "f8e5m2": 9, "f8e5m2fnuz": 9, "i4": 10, "u4": 10, "f4e2m1": 11, "f8e8m0": 12,
    "i2": 13, "u2": 13, "f6e2m3": 14, "f6e3m2": 14,
}  # fmt: skip


def model_to_proto(model: Model) -> onnx.ModelProto:
    """`model` as a `ModelProto`, weights included.

    The opset and the IR version are the lowest from 13 on at which every node can be expressed. Captures become
    the implicit references of ONNX, friendly names the nodes' names; "affinity" and "metadata" of `rt_info` become
    metadata. Raises `ModelWriteError` where something has no form in ONNX, and above 2 GB.
    """
    weights = _inline_bytes(model)
    if weights > _MAX_PROTO - _ROOM_FOR_GRAPH:
        raise ModelWriteError(
            f"model `{model.name}` has {weights} bytes of weights, and a ModelProto holds at most 2 GB; "
            "write it to a path, where weights go to a file beside it"
        )
    return export_proto(model, lambda constant, name, _: tensor_to_proto(constant.data, name))


def write_model(model: Model, destination: Destination, *, external_data: int | None = None) -> None:
    """Write `model` as an ONNX file, as `model_to_proto` describes it.

    A file appears under its name only when it is complete; one that was there is replaced then. Weights are
    written from where they are, without a copy.

    Args:
        destination: a path, or a binary stream.
        external_data: constants of at least so many bytes go to `<name>.data` beside the model. By default all
            are in the file itself, unless that would have more than 2 GB.

    Raises `ModelWriteError`; also where a stream would get more than 2 GB, or external data, which needs a path.
    """
    is_path = isinstance(destination, (str, os.PathLike))
    if external_data is None and _inline_bytes(model) > _MAX_PROTO - _ROOM_FOR_GRAPH:
        external_data = _SPLICED_BYTES
    if external_data is None:
        with _atomic(Path(destination)) if is_path else _checked_stream(destination) as file:  # type: ignore[arg-type]
            _write_inline(model, file)
        return
    if not is_path:
        raise ModelWriteError(
            f"model `{model.name}` cannot go to a stream: its weights need a file of their own; give a path"
        )
    _write_external(model, Path(destination), external_data)  # type: ignore[arg-type]


def export_proto(model: Model, write_tensor: TensorWriter) -> onnx.ModelProto:
    """`model` as a proto for the world, whose tensors `write_tensor` makes; internal operators are decomposed.

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
                opsets[node.domain] = model.opset_imports.get(node.domain, 1)
    opsets[""] = max(opsets.get("", 1), _LOWEST_OPSET)
    return opsets


def _describe(proto: onnx.ModelProto, model: Model) -> None:
    """Write what the model knows of itself and of the file from which it came."""
    about: dict[str, Any] = model.rt_info.get("onnx") or {}
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        if about.get(field):
            setattr(proto, field, about[field])
    proto.graph.doc_string = about.get("graph_doc_string", "")
    for key, value in model.metadata.items():
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
            info = node._rt_info
            if info and ("affinity" in info or info.get("metadata")):
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


def _inline_bytes(model: Model) -> int:
    """Bytes of all constants, those of bodies included; strings, whose size only writing tells, count nothing."""
    pending, total = [model], 0
    while pending:
        for node in pending.pop().ordered_nodes():
            if isinstance(node, Constant):
                total += node.byte_size
            pending.extend(node.bodies.values())
    return total


# -- files ------------------------------------------------------------------------------------------------


def _write_inline(model: Model, file: BinaryIO) -> None:
    """Write proto and weights as one message, the large weights of the main graph directly from their place."""
    spliced: list[tuple[bytes, Constant]] = []

    def write_tensor(constant: Constant, name: str, is_main: bool) -> onnx.TensorProto | None:
        if not is_main or constant.byte_size < _SPLICED_BYTES:
            return tensor_to_proto(constant.data, name)
        spliced.append((_header(constant, name).SerializeToString(), constant))
        return None

    proto = export_proto(model, write_tensor)
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    heads: list[bytes] = []
    for header, constant in spliced:
        tail = encode_length(_RAW_DATA, constant.byte_size)
        length = len(header) + len(tail) + constant.byte_size
        heads.append(encode_length(_INITIALIZER, length) + header + tail)
    size = len(graph) + sum(map(len, heads)) + sum(constant.byte_size for _, constant in spliced)
    _write(file, proto.SerializeToString() + encode_length(_GRAPH, size) + graph)
    for head, (_, constant) in zip(heads, spliced, strict=True):
        _write(file, head)
        _write(file, _raw(constant))


def _write_external(model: Model, path: Path, threshold: int) -> None:
    if threshold < 0:
        raise ModelWriteError(f"external_data is {threshold}; expected the least size in bytes, or None")
    location = f"{path.name}.data"
    placed: list[tuple[int, Constant]] = []
    end = 0

    def write_tensor(constant: Constant, name: str, is_main: bool) -> onnx.TensorProto:
        nonlocal end
        size = constant.byte_size
        if not size or size < threshold:
            return tensor_to_proto(constant.data, name)
        alignment = _PAGE if size >= _PAGE else _ALIGNMENT
        offset = -(-end // alignment) * alignment
        end = offset + size
        placed.append((offset, constant))
        tensor = _header(constant, name)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    proto = export_proto(model, write_tensor)
    with ExitStack() as files:
        # Left in reverse order: the data is in place before the model that names it.
        file = files.enter_context(_atomic(path))
        data = files.enter_context(_atomic(path.with_name(location))) if placed else None
        try:
            _write(file, proto.SerializeToString())
        except ValueError as e:
            raise ModelWriteError(f"model `{model.name}` has more than 2 GB beside its external data: {e}") from e
        for offset, constant in placed:
            assert data is not None
            data.seek(offset)
            _write(data, _raw(constant))


def _header(constant: Constant, name: str) -> onnx.TensorProto:
    """The tensor without its data."""
    element_type: ElementType = constant.element_type
    return onnx.TensorProto(name=name, data_type=element_type.onnx, dims=constant.shape)


def _raw(constant: Constant) -> Any:
    """The constant's bytes; what was unpacked for them alone is forgotten again."""
    was_loaded = constant.is_loaded
    data = tensor_to_raw(constant.data)
    if not was_loaded:
        constant.release()
    return data


def _write(file: BinaryIO, data: Any) -> None:
    """Write all of `data`: a raw stream may take a part at a time."""
    view = memoryview(data).cast("B")
    while view:
        try:
            written = file.write(view)
        except (OSError, ValueError) as e:
            raise ModelWriteError(f"the model cannot be written: {e}") from e
        view = view[len(view) if written is None else written :]


@contextmanager
def _checked_stream(stream: BinaryIO) -> Iterator[BinaryIO]:
    if not hasattr(stream, "write"):
        raise ModelWriteError(f"cannot write a model to {type(stream).__name__}; give a path or a binary stream")
    yield stream


@contextmanager
def _atomic(path: Path) -> Iterator[BinaryIO]:
    """A file that gets the name `path` when the block ends well, and is removed when it does not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(6).hex()}.tmp")
    try:
        try:
            file = open(temporary, "xb")  # noqa: SIM115 - closed before it is renamed
        except (OSError, ValueError) as e:
            raise ModelWriteError(f"`{path}` cannot be written: {getattr(e, 'strerror', None) or e}") from e
        with file:
            yield file
        try:
            os.replace(temporary, path)
        except OSError as e:
            raise ModelWriteError(f"`{path}` cannot be written: {e.strerror or e}") from e
    finally:
        temporary.unlink(missing_ok=True)
