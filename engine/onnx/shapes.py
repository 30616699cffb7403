"""Types of a model's values before its nodes are created: reads and combines inferred and declared ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from engine.errors import ModelError, ModelReadError
from engine.ir import (
    UNKNOWN,
    Dimension,
    OptionalType,
    PartialShape,
    SequenceType,
    TensorType,
    ValueType,
    undefined,
)
from engine.ops.protos import type_from_proto
from engine.startup.onnx_library import onnx

# The symbols that ONNX's data propagation generates for unknown dimensions, and the symbols of PyTorch's older exporter
# (operator, value, `_dim_`, axis), which gives several unknown lengths of one value the same.
_GENERATED: Final = re.compile(rb"unk__\d|_dim_\d")
_GENERATED_NAME: Final = re.compile(r"unk__\d+|[A-Z].*_dim_\d+")


_LONGEST: Final = 1 << 48  # addresses have at most 48 bits, and sums of lengths do not overflow 64

_CORRECTED: Final = frozenset({
    "BlackmanWindow", "GroupNormalization", "HammingWindow", "HannWindow", "MaxUnpool", "MeanVarianceNormalization",
    "MelWeightMatrix", "RMSNormalization", "Resize", "STFT", "Slice",
})  # fmt: skip
_POOLING: Final = frozenset({"AveragePool", "LpPool", "MaxPool"})


def is_corrected(op_type: str, domain: str, attributes: Mapping[str, Any]) -> bool:
    """Whether `engine.ops` corrects or adds to ONNX's whole-graph inference for a call.

    ONNX infers no length of a Slice whose bounds are computed, not even along an axis that is not sliced. Before opset
    22, ONNX counts windows of a pooling with ceil_mode that are entirely in the padding; no runtime does.
    """
    if domain:
        return False
    if attributes.get("pads") and attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return True  # ONNX adds the pads, which runtimes ignore
    return op_type in _CORRECTED or (op_type in _POOLING and bool(attributes.get("ceil_mode")))


class DeclaredTypes:
    """The types in a graph's value_info and outputs, removed from the graph so that inference does not use them.

    If an input has an unknown length, lengths that are stated for outputs are ignored: exporters state the lengths of
    the traced example (LSTM by PyTorch's, labels by onnxmltools').
    """

    __slots__ = ("_protos",)

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._protos = {value.name: value.type for value in (*graph.value_info, *graph.output)}
        if not _is_open(graph):
            return
        for value in graph.output:
            self._protos[value.name] = stated = onnx.TypeProto()
            stated.CopyFrom(value.type)
            for dim in stated.tensor_type.shape.dim if stated.HasField("tensor_type") else ():
                dim.ClearField("dim_value")

    def get(self, name: str, types: TypeReader) -> ValueType | None:
        """The declared type of a value, if there is one. Raises `ModelError`."""
        proto = self._protos.get(name)
        return None if proto is None else types.read(proto, name)


def _is_open(graph: onnx.GraphProto) -> bool:
    """Whether a length of an input is unknown."""
    given = {tensor.name for tensor in graph.initializer}
    dims = (dim for value in graph.input if value.name not in given for dim in value.type.tensor_type.shape.dim)
    return any(not dim.HasField("dim_value") for dim in dims)


class TypeReader:
    """Value types of protos; equal protos share one type."""

    __slots__ = ("_known", "_symbols")

    def __init__(self, inputs: Iterable[onnx.ValueInfoProto]) -> None:
        self._known: dict[bytes, ValueType] = {b"": UNKNOWN}
        self._symbols = {dim.dim_param for value in inputs for dim in value.type.tensor_type.shape.dim if dim.dim_param}

    def read(self, proto: onnx.TypeProto, name: str) -> ValueType:
        """The type that a file states for value `name`; dimensions with a generated symbol are unknown.

        Raises `ModelReadError`.
        """
        key = proto.SerializeToString()
        known = self._known.get(key)
        if known is None:
            try:
                known = type_from_proto(proto)
            except ModelError as e:
                raise ModelReadError(f"the type of value `{name}`: {e}") from e
            _check_lengths(known, name)
            if _GENERATED.search(key):
                known = self._without_generated(known)
            self._known[key] = known
        return known

    def inferred(self, proto: onnx.TypeProto) -> ValueType:
        """The type that inference found; dimensions with a generated symbol are unknown."""
        key = b"?" + proto.SerializeToString()
        known = self._known.get(key)
        if known is None:
            try:
                known = type_from_proto(proto)
            except ModelError:
                known = UNKNOWN  # for example a negative length, computed by a faulty model
            if _GENERATED.search(key):
                known = self._without_generated(known)
            self._known[key] = known
        return known

    def _without_generated(self, value_type: ValueType | None) -> ValueType:
        if isinstance(value_type, TensorType) and value_type.shape.rank.is_static:
            return TensorType(value_type.element_type, PartialShape(map(self._known_symbol, value_type.shape.dims)))
        if isinstance(value_type, SequenceType) and value_type.element is not None:
            return SequenceType(self._without_generated(value_type.element))
        if isinstance(value_type, OptionalType) and value_type.element is not None:
            return OptionalType(self._without_generated(value_type.element))
        return UNKNOWN if value_type is None else value_type

    def _known_symbol(self, dim: Dimension) -> Dimension | None:
        symbol = dim.symbol
        made_up = symbol is not None and _GENERATED_NAME.fullmatch(symbol) and symbol not in self._symbols
        return None if made_up else dim


def _check_lengths(value_type: ValueType, name: str) -> None:
    if isinstance(value_type, TensorType) and value_type.shape.rank.is_static:
        for dim in value_type.shape.dims:
            if dim.min > _LONGEST:
                raise ModelReadError(f"the type of value `{name}`: no tensor has {dim.min} elements along an axis")


def is_complete(value_type: ValueType) -> bool:
    """Whether inference of the single node could add nothing but lengths."""
    if isinstance(value_type, TensorType):
        return value_type.element_type is not undefined and value_type.shape.rank.is_static
    return not isinstance(value_type, (SequenceType, OptionalType)) or value_type.element is not None


def refine(inferred: ValueType, declared: ValueType | None) -> ValueType:
    """`inferred` refined by `declared`; parts in which they contradict each other stay as in `inferred`."""
    if declared is None or declared is inferred or declared == UNKNOWN:
        return inferred
    if inferred == UNKNOWN:
        return declared
    if isinstance(inferred, TensorType) and isinstance(declared, TensorType):
        element = inferred.element_type if inferred.element_type is not undefined else declared.element_type
        if element is not declared.element_type:
            return inferred
        return TensorType(element, _refine_shape(inferred.shape, declared.shape))
    if isinstance(inferred, SequenceType) and isinstance(declared, SequenceType):
        return SequenceType(_refine_element(inferred.element, declared.element))
    if isinstance(inferred, OptionalType) and isinstance(declared, OptionalType):
        return OptionalType(_refine_element(inferred.element, declared.element))
    return inferred


def without_shapes(declared: ValueType | None) -> ValueType | None:
    """`declared` with the element types only."""
    if isinstance(declared, TensorType):
        return TensorType(declared.element_type, PartialShape.dynamic())
    if isinstance(declared, SequenceType):
        return SequenceType(without_shapes(declared.element))
    if isinstance(declared, OptionalType):
        return OptionalType(without_shapes(declared.element))
    return declared


def is_narrower(stated: ValueType, found: ValueType) -> bool:
    """Whether the shape of a tensor type excludes shapes that the other one allows."""
    if not isinstance(stated, TensorType) or stated.shape.rank.is_dynamic:
        return False
    if not isinstance(found, TensorType) or found.shape.rank.is_dynamic:
        return True
    pairs = zip(stated.shape.dims, found.shape.dims, strict=True)
    return any((one.min, one.max) != (other.min, other.max) for one, other in pairs)


def _refine_element(inferred: ValueType | None, declared: ValueType | None) -> ValueType | None:
    return declared if inferred is None else refine(inferred, declared)


def _refine_shape(inferred: PartialShape, declared: PartialShape) -> PartialShape:
    if inferred == declared or inferred.is_static or not declared.rank.is_static:
        return inferred
    if not inferred.rank.is_static:
        return declared
    if len(inferred) != len(declared):
        return inferred
    pairs = zip(inferred.dims, declared.dims, strict=True)
    # The declared symbol, if any, comes first: it was chosen by the file's author.
    return PartialShape([stated.merge(found) if found.compatible(stated) else found for found, stated in pairs])
