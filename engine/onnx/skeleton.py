"""A model without its weights: large tensors stay in the file and are replaced by references.

The result is a small `ModelProto` that protobuf, the inliner and shape inference process in milliseconds.
"""

from __future__ import annotations

import functools
import os
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto  # type: ignore[import-untyped]
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

from engine.errors import ModelReadError
from engine.ir.long_list import LongList
from engine.onnx.long_lists import long_list
from engine.onnx.wire import ELEMENTS, LENGTH, MAX_DEPTH, Buffer, WireError, encode_length, encode_varint, fields
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

INLINE_BYTES: Final = 1024
"""Tensors of at most this many bytes stay in the skeleton, because shape inference reads them."""

LIST_BYTES: Final = 1 << 16
"""Lists of tree ensembles that take more bytes do not become messages of protobuf."""

_MAX_PROTO: Final = (1 << 31) - 1
_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _SPARSE, _FUNCTION, _DROPPED, _LIST = range(9)

# For each kind of message, the fields that may contain tensors. Training info is ignored.
_CHILDREN: Final[dict[int, dict[int, int]]] = {
    _MODEL: {7: _GRAPH, 20: _DROPPED, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    _FUNCTION: {7: _NODE},
}
_TREE_NODE: Final = {5: _LIST}
"""For nodes with lists of millions of elements."""
_OP_TYPE: Final = 4
_TREES: Final = b"TreeEnsemble"
_TENSOR_TAG: Final = 5
_ELEMENTS: Final = 0
"""In place of the number of a tensor's field."""

RAW_DATA: Final = 9
# float, int32, int64, raw, double and uint64 data; strings stay in the skeleton, as they become Python objects anyway.
_DATA_FIELDS: Final = frozenset({4, 5, 7, RAW_DATA, 10, 11})
_EXTERNAL_DATA: Final = 13
_LOCATION_IS_EXTERNAL: Final = encode_varint(14 << 3) + encode_varint(onnx.TensorProto.EXTERNAL)


@dataclass(frozen=True, slots=True)
class Span:
    """The content of a tensor's data field: the field's number, and the content's position in the file.

    The elements of a list have no field.
    """

    field: int
    start: int
    stop: int


def parse_model(data: bytes) -> onnx.ModelProto:
    """`data` as a `ModelProto` that has a graph and whose strings are valid UTF-8. Raises `ModelReadError`."""
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
        _strict_model().FromString(data)
    except DecodeError as e:
        raise ModelReadError(f"protobuf cannot read it: {e}") from e
    if not proto.HasField("graph"):
        raise ModelReadError("it has no graph")
    return proto


@functools.cache
def _strict_model() -> type[onnx.ModelProto]:
    """`ModelProto` in proto3 syntax, for which protobuf checks that strings are UTF-8.

    The onnx package's own class returns bytes for invalid strings, which readers of names do not expect.
    """
    file = FileDescriptorProto()
    onnx.ModelProto.DESCRIPTOR.file.CopyToProto(file)
    file.syntax = "proto3"
    pool = DescriptorPool()
    pool.Add(file)
    strict: type[onnx.ModelProto] = GetMessageClass(pool.FindMessageTypeByName(onnx.ModelProto.DESCRIPTOR.full_name))
    return strict


def _is_tree(source: Buffer, start: int, end: int) -> bool:
    names = (bytes(source[at:stop]) for number, _, _, at, stop in fields(source, start, end) if number == _OP_TYPE)
    return any(name.startswith(_TREES) for name in names)


class Skeleton:
    """The model in `data` without its weights, and the spans that its references refer to.

    A reference looks like external data; `span_of` distinguishes it from external data in the file by a secret
    that is random for each skeleton, so that a file cannot forge one.
    """

    __slots__ = ("_key", "data", "lists", "spans")

    data: bytes
    lists: dict[int, LongList]
    spans: list[Span]

    def __init__(self, source: Buffer) -> None:
        self._key = os.urandom(16).hex()
        self.spans = []
        self.lists = {}
        chunks: list[Buffer] = []
        size = self._copy(source, 0, len(source), _MODEL, chunks, 0)
        if size > _MAX_PROTO:
            raise ModelReadError(f"the model takes {size} bytes without its weights; protobuf reads at most 2 GB")
        self.data = b"".join(chunks)

    def span_of(self, tensor: onnx.TensorProto) -> Span | None:
        """The span that `tensor` refers to; None if it is not a reference of this skeleton."""
        entries = tensor.external_data
        if len(entries) != 1 or entries[0].key != self._key:
            return None
        return self.spans[int(entries[0].value)]

    def list_of(self, tensor: onnx.TensorProto) -> LongList | None:
        """The list of an attribute that has a reference in place of its elements; None if it has none."""
        entries = tensor.external_data
        return self.lists.get(int(entries[0].value)) if len(entries) == 1 and entries[0].key == self._key else None

    def _copy(self, source: Buffer, start: int, end: int, kind: int, chunks: list[Buffer], depth: int) -> int:
        """Append the message `source[start:end]` to `chunks`, without weights, and return its new size."""
        if depth > MAX_DEPTH:
            raise WireError(start, f"messages are nested more than {MAX_DEPTH} deep")
        children = _CHILDREN[kind]
        if kind == _NODE and end - start > LIST_BYTES and _is_tree(source, start, end):
            children = _TREE_NODE
        size, kept = 0, start
        skipped = ELEMENTS if kind == _ATTRIBUTE else None  # a tree ensemble has hundreds of thousands of them
        for number, wire, begin, payload, stop in fields(source, start, end, skipped):
            # A small message cannot contain a large tensor.
            if number not in children or wire != LENGTH or stop - payload <= INLINE_BYTES:
                continue
            chunks.append(source[kept:begin])
            size += begin - kept
            kept = stop
            child = children[number]
            if child == _DROPPED:
                continue
            mark = len(chunks)
            chunks.append(b"")
            if child == _LIST:
                length = self._copy_list(source, payload, stop, chunks, depth)
            elif child == _TENSOR:
                length = self._copy_tensor(source, payload, stop, chunks)
            else:
                length = self._copy(source, payload, stop, child, chunks, depth + 1)
            chunks[mark] = head = encode_length(number, length)
            size += len(head) + length
        chunks.append(source[kept:end])
        return size + end - kept

    def _copy_list(self, source: Buffer, start: int, end: int, chunks: list[Buffer], depth: int) -> int:
        found = long_list(source, start, end) if end - start > LIST_BYTES else None
        if found is None:
            return self._copy(source, start, end, _ATTRIBUTE, chunks, depth + 1)
        first, stop, elements = found
        reference = self._reference(len(self.spans))
        self.lists[len(self.spans)] = elements
        self.spans.append(Span(_ELEMENTS, first, stop))
        tensor = encode_length(_TENSOR_TAG, len(reference)) + reference
        chunks += (source[start:first], tensor, source[stop:end])
        return first - start + len(tensor) + end - stop

    def _copy_tensor(self, source: Buffer, start: int, end: int, chunks: list[Buffer]) -> int:
        data = [field for field in fields(source, start, end) if field[0] in _DATA_FIELDS]
        # Data in several pieces is legal, but rare; protobuf joins the pieces.
        if len(data) != 1 or data[0][1] != LENGTH or data[0][4] - data[0][3] <= INLINE_BYTES:
            chunks.append(source[start:end])
            return end - start
        number, _, begin, payload, stop = data[0]
        reference = self._reference(len(self.spans))
        self.spans.append(Span(number, payload, stop))
        chunks += (source[start:begin], source[stop:end], reference)
        return begin - start + end - stop + len(reference)

    def _reference(self, index: int) -> bytes:
        key, value = self._key.encode(), str(index).encode()
        entry = encode_length(1, len(key)) + key + encode_length(2, len(value)) + value
        return encode_length(_EXTERNAL_DATA, len(entry)) + entry + _LOCATION_IS_EXTERNAL
