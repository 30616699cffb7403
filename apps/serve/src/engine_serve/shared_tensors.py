"""Tensors of requests in shared memory: inputs are read before the request runs, and outputs written at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from kserve import InferOutput, InferRequest
from kserve.protocol.infer_type import RequestedOutput, serialize_byte_tensor

from engine.errors import InputError, TooLargeError, UnsupportedError
from engine_serve.shared_memory import Regions, Span, turned_off, whole

REGION: Final = "shared_memory_region"
_OFFSET: Final = "shared_memory_offset"
_SIZE: Final = "shared_memory_byte_size"
SHARED: Final = frozenset({REGION, _OFFSET, _SIZE})
"""The parameters of a tensor in shared memory."""
_INLINE_BYTES: Final = 1 << 18
"""Up to this size, a copy takes less time than passing it to a thread."""


class RegionOutput(RequestedOutput):  # type: ignore[misc]
    """An output that a request asks for in shared memory, at `span`."""

    def __init__(self, name: str, parameters: dict[str, Any], span: Span) -> None:
        super().__init__(name, parameters)
        self.span = span

    def tensor(self, value: Any, datatype: str) -> tuple[InferOutput, Any]:
        """The answer's tensor, which has no data, and the bytes to be written. Raises `InputError` if they are too
        many.
        """
        if value.dtype == object:
            data = serialize_byte_tensor(value).item() if value.size else b""
        else:
            data = value.reshape(-1).view("uint8").data
        if len(data) > self.span.size:
            raise InputError(
                f"output {self.name!r:.80} has {len(data)} bytes, and the request gives it {self.span.size} of region "
                f"{self.span.region.name!r:.80}"
            )
        where = {REGION: self.span.region.name, _OFFSET: self.span.start - self.span.region.offset, _SIZE: len(data)}
        output = InferOutput(self.name, list(value.shape), datatype, parameters=where)
        output._raw_data = b""  # gRPC has an entry for each output, in their order
        return output, data


async def take_shared(request: InferRequest, regions: Regions | None, max_bytes: int) -> None:
    """Read the inputs of a request that are in shared memory, and find the regions of its outputs.

    Large inputs are read in another thread. Raises `InputError` for unknown regions, ranges that are not in them,
    outputs that overlap, and memory that has been shortened; `TooLargeError` if the inputs have more bytes together
    than `max_bytes`; and `UnsupportedError` if `regions` is None.
    """
    spans: list[tuple[Any, Span]] = []
    for tensor in request.inputs:
        where = f"of input {tensor.name!r:.80}"
        span = _taken(tensor, where, regions)
        if span is None:
            continue
        if tensor.data or tensor._raw_data:
            raise InputError(f"input {tensor.name!r:.80} has both data and a `{REGION}`; leave one out")
        spans.append((tensor, span))
    _find_outputs(request, regions)
    size = sum(span.size for _, span in spans)
    if size > max_bytes:
        raise TooLargeError(
            f"the inputs in shared memory have {size} bytes, and the server reads at most {max_bytes} (--max-body)"
        )
    if not spans:
        return
    if size <= _INLINE_BYTES:
        _read(spans)
    else:
        await asyncio.to_thread(_read, spans)


def _read(spans: list[tuple[Any, Span]]) -> None:
    for tensor, span in spans:
        tensor._raw_data = span.read()


def _find_outputs(request: InferRequest, regions: Regions | None) -> None:
    asked = request.request_outputs or []
    found: list[RegionOutput] = []  # a request can name any number of outputs, so that not each pair is compared
    for place, output in enumerate(asked):
        span = _taken(output, f"of output {output.name!r:.80}", regions)
        if span is None:
            continue
        asked[place] = RegionOutput(output.name, output.parameters, span)
        if span.size:
            found.append(asked[place])
    for one, other in pairwise(sorted(found, key=lambda each: each.span.place)):
        if one.span.overlaps(other.span):
            raise InputError(f"outputs {one.name!r:.80} and {other.name!r:.80} have the same bytes in shared memory")


def _taken(tensor: Any, where: str, regions: Regions | None) -> Span | None:
    """The span of a tensor in shared memory, whose parameters are taken away from it; None for other tensors."""
    parameters: Mapping[str, Any] = tensor.parameters or {}
    given = SHARED.intersection(parameters)
    if not given:
        return None
    if regions is None:
        raise UnsupportedError(f"the parameter {min(given)!r} {where}: {turned_off()}")
    if REGION not in given:
        raise InputError(f"the parameter {min(given)!r} {where} needs `{REGION}`")
    region = regions.find(parameters[REGION])
    size = whole(parameters.get(_SIZE), f"`{_SIZE}` {where}")
    span = region.span(whole(parameters.get(_OFFSET, 0), f"`{_OFFSET}` {where}"), size)
    tensor.parameters = {name: value for name, value in parameters.items() if name not in SHARED}
    return span
