"""The memory of an inference, as far as it is known before: for `ExecutableNetwork.memory_forecast`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from engine.ir.sizes import array_bytes, joined_bytes, known_bytes
from engine.lowering import is_static, specialize
from engine.native import ConstantSpans
from engine.plugin_api import ExecutableNetwork, MemoryForecast, Model
from engine.properties import NUM_STREAMS
from engine_template.program import Value, map_to_device


def forecast(
    network: ExecutableNetwork, graph: Model, constants: Iterable[Value], shapes: Sequence[tuple[int, ...]]
) -> MemoryForecast:
    """The constants in their slots, and the values that are in slots at one time.

    A device with memory of its own knows its sizes from what it allocates.
    """
    known = graph if is_static(graph) else specialize(graph, tuple(shapes))
    sizes: dict[int, int] = {}
    unknown = []
    for slot, value in enumerate((value for node in known.ordered_nodes() for value in node.outputs), start=1):
        nbytes = known_bytes(value.type)
        sizes[slot] = nbytes or 0
        if nbytes is None:
            unknown.append(value.node.friendly_name)
    live = most = 0
    for operation in (program := map_to_device(known)).operations:
        live += sum(sizes[slot] for slot in operation.outputs)
        most = max(most, live)
        live -= sum(sizes[slot] for slot in operation.frees if slot not in program.inputs)
    spans = ConstantSpans()
    for array in constants:
        if isinstance(array, np.ndarray) and not array.dtype.hasobject:
            spans.add(array)
    mapped = joined_bytes(spans.mapped)
    results = [known_bytes(result.type) or 0 for result in known.results]
    count = len(network.outputs)
    return MemoryForecast.of(
        weights=joined_bytes(spans.own) + mapped,
        mapped=mapped,
        arena=most,
        states=sum(results[count:]),
        inputs=sum(array_bytes(port.type, shape) for port, shape in zip(network.inputs, shapes, strict=False)),
        outputs=sum(results[:count]),
        streams=network.config[NUM_STREAMS] or 1,
        unknown=tuple(dict.fromkeys(unknown)),
    )
