"""`read_model`: reads an ONNX model from a path, bytes, a stream or a proto into the IR."""

from __future__ import annotations

import os
from typing import Any

from engine.errors import ModelReadError
from engine.files import ModelSource
from engine.ir import DECLARED_LENGTHS, Model
from engine.onnx.calls import CallChecker
from engine.onnx.external_data import ExternalData
from engine.onnx.graph_builder import GraphBuilder, ImportContext
from engine.onnx.graph_inference import infer_graph
from engine.onnx.inlining import inline_functions
from engine.onnx.ordering import order_graph
from engine.onnx.releases import check_release
from engine.onnx.safetensors import Weights
from engine.onnx.scopes import separate_scopes
from engine.onnx.shapes import DeclaredTypes, TypeReader
from engine.onnx.skeleton import Skeleton, parse_model
from engine.onnx.source import OpenedModel, describe_other_format, open_model
from engine.onnx.stored_tensors import FileTensors
from engine.onnx.variables import read_metadata
from engine.ops import CANONICAL_VERSIONS
from engine.startup import paused_collector
from engine.startup.onnx_library import onnx

__all__ = ["read_model"]

_FIRST_IR_WITH_OPSETS = 3
_FIRST_IR_WITH_DEFAULTS = 4
"""Files of earlier versions have to list all initializers as inputs, so that it says nothing."""


def read_model(source: ModelSource, weights: str | os.PathLike[str] | None = None) -> Model:
    """Read an ONNX model of any opset and convert it to the canonical opset.

    Weights are not copied: constants are views of the mapped file, of its external data files, or of the given
    bytes. None of these may change while the model exists. Local functions are inlined; initializers become
    constants, even if the file also lists them as inputs (`Model.overridable`, from IR version 4 on). A node's metadata
    is in its `rt_info`: "affinity", and the rest under "metadata"; the model's metadata is in its `metadata` and in
    `rt_info["onnx"]`.

    Args:
        source: a path (a str is always one), bytes, a binary stream, or a `ModelProto`.
        weights: the path of a safetensors file, whose tensors replace the data of the initializers of the same names.

    Raises:
        ModelReadError: the file is missing, truncated or not an ONNX model; `ExternalDataError` if its data is, or if
            a tensor of `weights` has another type or shape than the initializer.
        GraphError: a cycle, a value that is not defined, or one that is defined twice.
        TypeInferenceError: an operator does not accept its inputs.
        UnsupportedError: the model is valid, but uses features that are too new or not supported.
    """
    opened = open_model(source)
    return _read(opened, ExternalData(opened.path), None if weights is None else Weights(weights))


def read_with_statuses(path: str | os.PathLike[str]) -> tuple[Model, dict[str, os.stat_result]]:
    """Like `read_model`, with what `os.fstat` says of the files that were mapped: the model's own is "".

    The others are those of its external data, by the locations that the model states.
    """
    opened = open_model(path)
    external = ExternalData(opened.path)
    model = _read(opened, external, None)
    assert opened.status is not None
    return model, {"": opened.status, **external.statuses}


def _read(opened: OpenedModel, external: ExternalData, weights: Weights | None) -> Model:
    skeleton, proto = _weightless(opened)
    try:
        with paused_collector():
            return _build(opened, skeleton, proto, external, weights)
    except RecursionError as e:
        raise ModelReadError(f"{opened.label} is nested too deep: {e}") from e


def _weightless(opened: OpenedModel) -> tuple[Skeleton, onnx.ModelProto]:
    try:
        skeleton = Skeleton(opened.data)
        return skeleton, parse_model(skeleton.data)
    except ModelReadError as e:
        found = describe_other_format(opened.data)
        if found is not None:
            raise ModelReadError(f"{opened.label} is {found}") from e
        raise ModelReadError(f"{opened.label} is not a valid ONNX model, or is truncated: {e}") from e


def _build(
    opened: OpenedModel,
    skeleton: Skeleton,
    proto: onnx.ModelProto,
    external: ExternalData,
    weights: Weights | None,
) -> Model:
    _check_versions(opened, proto)
    check_release(opened.label, proto, opsets_of(proto))
    if weights is not None:
        weights.apply(proto)
    mixed = inline_functions(proto)
    separate_scopes(proto.graph)
    order_graph(proto.graph, CallChecker(opsets_of(proto)))
    declared = DeclaredTypes(proto.graph)
    inferred = infer_graph(proto, is_mixed=mixed)
    store = FileTensors(opened.data, skeleton, external, weights)
    types = TypeReader(inferred.graph.input)
    is_overridable = proto.ir_version >= _FIRST_IR_WITH_DEFAULTS
    context = ImportContext(store, types, opsets_of(proto), is_overridable=is_overridable)
    model, _ = GraphBuilder(context, inferred.graph, declared).build()
    describe_model(model, proto)
    if context.declared:
        model.rt_info[DECLARED_LENGTHS] = True
    if not proto.graph.name and opened.path is not None:
        model.name = opened.path.stem
    return model


def opsets_of(proto: onnx.ModelProto) -> dict[str, int]:
    """The opset versions of a model by domain; ONNX's own domain is ""."""
    opsets = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in proto.opset_import}
    # Files from before opsets were introduced use the operators of opset 1.
    return opsets if proto.opset_import else {"": 1}


def describe_model(model: Model, proto: onnx.ModelProto) -> None:
    """Set the model's metadata from the file's."""
    read_metadata(model, {entry.key: entry.value for entry in proto.metadata_props})
    model.opset_imports = {
        domain: version for domain, version in opsets_of(proto).items() if domain not in CANONICAL_VERSIONS
    }
    graph = proto.graph
    about: dict[str, Any] = {
        "ir_version": proto.ir_version,
        "opsets": opsets_of(proto),
        "producer_name": proto.producer_name,
        "producer_version": proto.producer_version,
        "domain": proto.domain,
        "model_version": proto.model_version,
        "doc_string": proto.doc_string,
        "graph_doc_string": graph.doc_string,
        "graph_metadata": {entry.key: entry.value for entry in graph.metadata_props},
        "quantization_annotation": {
            annotation.tensor_name: {entry.key: entry.value for entry in annotation.quant_parameter_tensor_names}
            for annotation in graph.quantization_annotation
        },
    }
    model.rt_info["onnx"] = {key: value for key, value in about.items() if value}


def _check_versions(opened: OpenedModel, proto: onnx.ModelProto) -> None:
    if not proto.opset_import and proto.ir_version >= _FIRST_IR_WITH_OPSETS:
        raise ModelReadError(
            f"{opened.label} imports no opset, so the versions of its operators are unknown; it may be truncated"
        )
    for domain, version in opsets_of(proto).items():
        if version < 1:
            raise ModelReadError(
                f"{opened.label} imports opset {version} of domain `{domain or 'ai.onnx'}`; expected 1 or more"
            )
