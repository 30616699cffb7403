"""The memory of an inference, as far as it is known before: for `ExecutableNetwork.memory_forecast`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from engine.errors import MemoryBudgetError
from engine.ir.sizes import array_bytes, joined_bytes, known_bytes
from engine.limits.memory_budget import over_budget
from engine.lowering import is_static, specialize
from engine.native import ConstantSpans
from engine.plugin_api import MemoryForecast, Model, Signature
from engine.startup import dataclass
from engine_template.program import Program, Value, map_to_device


def forecast(
    signature: Signature, streams: int, graph: Model, constants: Iterable[Value], shapes: Sequence[tuple[int, ...]]
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
    count = len(signature.outputs)
    return MemoryForecast.of(
        weights=joined_bytes(spans.own) + mapped,
        mapped=mapped,
        arena=most,
        states=sum(results[count:]),
        inputs=sum(array_bytes(port.type, shape) for port, shape in zip(signature.inputs, shapes, strict=False)),
        outputs=sum(results[:count]),
        streams=streams,
        unknown=tuple(dict.fromkeys(unknown)),
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """What inferences with open lengths may take. The engine compares networks whose lengths are all known.

    It refers to the parts of a network, not to the network: a reference cycle would delay freeing it.
    """

    network: str
    nbytes: int
    signature: Signature
    streams: int
    graph: Model
    program: Program

    def require(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise `MemoryBudgetError` if an inference with inputs of these shapes takes more."""
        constants = (self.program.memory[slot] for slot in self.program.constants)
        found = forecast(self.signature, self.streams, self.graph, constants, shapes)
        if found.peak > self.nbytes:
            listed = ", ".join(str(list(shape)) for shape in shapes)
            what = f"TEMPLATE: an inference of `{self.network}` with inputs of shapes {listed}"
            raise MemoryBudgetError(over_budget(what, found, self.nbytes), needed=found.peak)
