"""The positions of the tensors' bytes in a model's file and the files beside it, without reading them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from engine.errors import ExternalDataError
from engine.onnx.external_data import ExternalData
from engine.onnx.skeleton import RAW_DATA, Skeleton, parse_model
from engine.onnx.source import map_file
from engine.startup import dataclass
from engine.startup.onnx_library import onnx


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """The bytes of a tensor: in the file `location` beside the model, or in the model's own file if it is "".

    `start` and `size` are in bytes.
    """

    location: str
    start: int
    size: int


def weight_spans(path: str | os.PathLike[str]) -> list[WeightSpan]:
    """The tensors of a model that are stored as raw bytes and take more than 1 KiB. Raises `ModelReadError`."""
    skeleton = Skeleton(map_file(Path(path), f"model {os.fspath(path)}"))
    own = [WeightSpan("", span.start, span.stop - span.start) for span in skeleton.spans if span.field == RAW_DATA]
    tensors = _tensors(parse_model(skeleton.data).graph)
    beside = [_external(tensor) for tensor in tensors if skeleton.span_of(tensor) is None]
    return [*own, *(span for span in beside if span is not None)]


def data_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files beside a model that have data of its tensors, whether or not they exist. Raises `ModelReadError`."""
    skeleton = Skeleton(map_file(Path(path), f"model {os.fspath(path)}"))
    locations = {
        entry.value
        for tensor in _tensors(parse_model(skeleton.data).graph)
        if skeleton.span_of(tensor) is None
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [Path(path).parent / location for location in sorted(locations) if "\0" not in location]


def read_span(path: str | os.PathLike[str], span: WeightSpan) -> memoryview:
    """The bytes of a span, mapped. Only files in the folders of the model are read.

    Raises `ModelReadError`, `ExternalDataError` if the file does not have them.
    """
    if span.location:
        tensor = onnx.TensorProto(name=f"at {span.start}", data_location=onnx.TensorProto.EXTERNAL)
        for key, value in (("location", span.location), ("offset", span.start), ("length", span.size)):
            tensor.external_data.add(key=key, value=str(value))
        return ExternalData(Path(path)).content(tensor, span.size)
    data = memoryview(map_file(Path(path), f"model {os.fspath(path)}"))
    if span.start + span.size > len(data):
        raise ExternalDataError(
            f"{os.fspath(path)}: it has {len(data)} bytes, and {span.size} at {span.start} are needed; it is truncated "
            "or another model"
        )
    return data[span.start : span.start + span.size]


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)


def _external(tensor: onnx.TensorProto) -> WeightSpan | None:
    """The span that a tensor names; None if it has no external data, or does not say where."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    numbers = [entries.get("offset", "0"), entries.get("length", "")]
    if not entries.get("location") or not all(number.isascii() and number.isdecimal() for number in numbers):
        return None
    return WeightSpan(entries["location"], *map(int, numbers))
