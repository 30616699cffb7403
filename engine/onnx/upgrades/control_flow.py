"""Upgrades of Scan, which version 8 ran for every entry of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine import ops
from engine.ir import Model, Output, Parameter, PartialShape, Result, TensorType
from engine.onnx.upgrades.call import OldCall, Upgraded, upgrade
from engine.onnx.upgrades.emit import emit, i64s


@upgrade("Scan", since=8, to=9)
def _without_batch(call: OldCall) -> Upgraded:
    """Dimension 0 of every input and output was the batch, dimension 1 of the scanned ones the sequence.

    From 9 on there is no batch: an outer Scan over the batch holds a Scan over the sequence.
    """
    body = call.attributes.get("body")
    if not isinstance(body, Model):
        call.invalid("attribute `body` is missing")
    formal = len(call.inputs) - len(body.captures)
    lengths = call.inputs[0] if formal else None
    batched = [call.input(index) for index in range(1, formal)]
    scanned = call.integer("num_scan_inputs")
    if not 1 <= scanned <= len(batched):
        call.invalid(f"num_scan_inputs is {scanned}; expected 1..{len(batched)}")
    over_batch = batched if lengths is None else [lengths, *batched]
    outer = _one_entry(body, over_batch, len(batched) - scanned, lengths is not None, call.integers("directions"))
    attributes = {"body": outer, "num_scan_inputs": len(over_batch)}
    node = ops.create("Scan", [*over_batch, *call.inputs[formal:]], attributes, num_outputs=len(outer.results))
    return node.outputs[: call.num_outputs]


def _one_entry(
    body: Model, over_batch: Sequence[Output], states: int, has_length: bool, directions: Sequence[int]
) -> Model:
    """The body of the outer Scan: each parameter is one entry of the batch; the length comes first if given."""
    parameters = [Parameter(_entry_type(value), friendly_name=f"entry_{i}") for i, value in enumerate(over_batch)]
    captures = [Parameter(capture.type, friendly_name=capture.friendly_name) for capture in body.captures]
    entries: list[Output] = [parameter.output(0) for parameter in parameters]
    length = emit("Reshape", entries.pop(0), i64s([1])) if has_length else None
    sequences = entries[states:]
    if length is not None:
        sequences = [emit("Slice", value, i64s([0]), length, i64s([0])) for value in sequences]
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(sequences)}
    if directions:
        attributes["scan_input_directions"] = tuple(directions)
    inner = ops.create("Scan", [*entries[:states], *sequences, *captures], attributes, num_outputs=len(body.results))
    outputs = inner.outputs
    if length is not None:
        full = emit("Shape", entries[states], end=1)
        pads = emit("Concat", i64s([0]), emit("Sub", full, length), axis=0)
        outputs[states:] = [emit("Pad", value, pads, None, i64s([0])) for value in outputs[states:]]
    results = [Result(value, f"result_{i}") for i, value in enumerate(outputs)]
    return Model(results, parameters, name=body.name, captures=captures)


def _entry_type(value: Output) -> TensorType:
    shape = value.shape
    entry = PartialShape(shape.dims[1:]) if shape.rank.is_static else PartialShape.dynamic()
    return TensorType(value.element_type, entry)
