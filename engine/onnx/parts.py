"""Splits a model for a blob into a small skeleton and a section of bytes for each constant, which are used in place.

The skeleton is a `ModelProto` of the canonical opset with every type, name and JSON-like annotation, so that
reading it requires neither upgrades nor inference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from engine.errors import ModelReadError, UnsupportedError
from engine.ir import Constant, Model, TensorType
from engine.onnx.annotations import RT_INFO, parse_rt_info, rt_info_text
from engine.onnx.calls import CallChecker
from engine.onnx.graph_builder import GraphBuilder, ImportContext
from engine.onnx.ordering import order_graph
from engine.onnx.shapes import TypeReader
from engine.onnx.skeleton import INLINE_BYTES, RAW_DATA, parse_model
from engine.onnx.stored_tensors import TensorStore, stored_type
from engine.onnx.variables import metadata_of, read_metadata
from engine.onnx.wire import Buffer
from engine.ops import CANONICAL_VERSIONS
from engine.ops.protos import tensor_to_proto, tensor_to_raw
from engine.startup import paused_collector
from engine.startup.onnx_library import onnx

__all__ = ["Section", "join_model", "split_model"]

_SECTION: Final = "engine.section"
_OMITTED: Final = "engine.omitted"


class Section(NamedTuple):
    """The data of one constant.

    Attributes:
        name: the skeleton's name for it.
        type: its element type and static shape.
        data: a buffer of its bytes in ONNX's raw storage: little-endian, narrow types packed.
    """

    name: str
    type: TensorType
    data: Any


def split_model(
    model: Model, omit: Callable[[Constant], bool] | None = None, *, keep_unread: bool = False
) -> tuple[bytes, list[Section]]:
    """`model` as a skeleton and the sections of its constants; small and string constants stay in the skeleton.

    If `omit` is true for a constant that is large enough for a section, only its type is written: a device
    keeps its data in another form. Overridable initializers that no node reads are left out unless `keep_unread`.

    Entries of `rt_info` that JSON cannot represent are dropped. Data of contiguous constants is not copied. Raises
    `ModelWriteError`.
    """
    from engine.onnx.graph_writer import ExportContext, GraphWriter  # not needed for reading and compiling
    from engine.onnx.naming import Scope

    sections: list[Section] = []

    def write_tensor(constant: Constant, name: str, is_main: bool) -> onnx.TensorProto:
        value_type = constant.output(0).type
        assert isinstance(value_type, TensorType)
        if constant.byte_size <= INLINE_BYTES:
            return tensor_to_proto(constant.data, name)
        if omit is not None and omit(constant):
            return _external(name, value_type, _OMITTED, "")
        section = Section(str(len(sections)), value_type, tensor_to_raw(constant.data))
        sections.append(section)
        return _external(name, value_type, _SECTION, section.name)

    context = ExportContext(CANONICAL_VERSIONS, write_tensor, exact=True)
    proto = onnx.ModelProto(ir_version=onnx.IR_VERSION)
    proto.graph.CopyFrom(GraphWriter(context, Scope(model, strict=False, keep_unread=keep_unread)).write())
    for domain, version in {**CANONICAL_VERSIONS, **model.opset_imports}.items():
        proto.opset_import.add(domain=domain, version=version)
    for key, value in metadata_of(model).items():
        proto.metadata_props.add(key=key, value=value)
    proto.graph.metadata_props.add(key=RT_INFO, value=rt_info_text(model.rt_info))
    return proto.SerializeToString(), sections


def join_model(skeleton: bytes, load: Callable[[str], Buffer]) -> Model:
    """The model that `split_model` has split into `skeleton` and sections; `load` returns a section's bytes by name.

    Constants are views of these bytes; reading the data of an omitted one raises `ModelReadError`.
    The skeleton is validated: any fault raises a `ModelError`; exceptions of `load` pass through.
    """
    try:
        proto = parse_model(skeleton)
    except ModelReadError as e:
        raise ModelReadError(f"the model's skeleton is damaged: {e}") from e
    try:
        with paused_collector():
            return _join(proto, load)
    except UnsupportedError as e:  # a valid skeleton has only known operators
        raise ModelReadError(f"the model's skeleton is damaged: {e}") from e
    except RecursionError as e:
        raise ModelReadError(f"the model's skeleton is nested too deep: {e}") from e


def _join(proto: onnx.ModelProto, load: Callable[[str], Buffer]) -> Model:
    # Stated types are not checked, but calls are, because invalid ones could make evaluation hang.
    order_graph(proto.graph, CallChecker(CANONICAL_VERSIONS))
    context = ImportContext(_SectionTensors(load), TypeReader(proto.graph.input), {}, exact=True)
    model, _ = GraphBuilder(context, proto.graph).build()
    model.name = proto.graph.name
    read_metadata(model, {entry.key: entry.value for entry in proto.metadata_props})
    model.opset_imports = {
        entry.domain: entry.version for entry in proto.opset_import if entry.domain not in CANONICAL_VERSIONS
    }
    for entry in proto.graph.metadata_props:
        if entry.key == RT_INFO:
            model.rt_info.update(parse_rt_info(entry.value))
    return model


def _external(name: str, value_type: TensorType, key: str, value: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=value_type.element_type.onnx, dims=value_type.shape.get_shape())
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key=key, value=value)
    return tensor


class _SectionTensors(TensorStore):
    """The tensors of a skeleton, whose data `load` returns."""

    __slots__ = ("_load",)

    def __init__(self, load: Callable[[str], Buffer]) -> None:
        self._load = load

    def constant(self, tensor: onnx.TensorProto) -> Constant:
        """See `TensorStore`."""
        is_external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if not is_external or [entry.key for entry in tensor.external_data] != [_OMITTED]:
            return super().constant(tensor)
        value_type = stored_type(tensor)

        def load() -> Any:
            raise ModelReadError(f"the data of constant `{tensor.name}`, {value_type}, is not in the skeleton")

        return Constant.lazy(value_type, load, friendly_name=tensor.name)

    def content(self, tensor: onnx.TensorProto, needed: int) -> tuple[int, Buffer]:
        """See `TensorStore`."""
        entries = tensor.external_data
        if len(entries) != 1 or entries[0].key != _SECTION:
            raise ModelReadError(f"tensor `{tensor.name}` of the skeleton names no section")
        data = memoryview(self._load(entries[0].value)).cast("B")
        if len(data) != needed:
            raise ModelReadError(
                f"tensor `{tensor.name}` takes {needed} bytes, but section `{entries[0].value}` has {len(data)}"
            )
        return RAW_DATA, data
