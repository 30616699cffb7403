"""State shared by all requests of a network: the parts' networks, bindings, early starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.ir import TensorType
from engine.native import empty_aligned
from engine.plugin_api import ExecutableNetwork, Executor, RemoteTensor
from engine.startup import dataclass
from engine_hetero.network.early_starts import EarlyStarts
from engine_hetero.wiring.wiring import NETWORK, PartWiring, Source, Wiring


@dataclass(frozen=True, slots=True)
class PartLinks:
    """The inputs and outputs of one part's request.

    Attributes:
        bound_outputs: the outputs that are written to memory bound once.
        bound_inputs: (input, source) bound once to the memory that another part writes.
        inputs: (input, source) that are set before each inference.
        kept: the outputs that are read after the part has run: by parts with unbound inputs, and as results.
    """

    bound_outputs: tuple[int, ...]
    bound_inputs: tuple[tuple[int, Source], ...]
    inputs: tuple[tuple[int, Source], ...]
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dataflow:
    """The parts of a compiled network and how they are connected. Shared by all requests; only `early` changes.

    Attributes:
        networks: the network of each part.
        executors: the executor of each part for asynchronous runs: one per device.
        links: the links of each part.
        buffers: the (part, output) with memory bound once: static tensors that other parts read.
        remote: the `buffers` in the memory of a device whose other parts read them; parts on other devices get copies.
        early: which parts start before their turn.
        outputs: for each output of the network, its index, its source, and whether it must be copied.
    """

    wiring: Wiring
    networks: tuple[ExecutableNetwork, ...]
    executors: tuple[Executor, ...]
    links: tuple[PartLinks, ...]
    buffers: tuple[tuple[int, int], ...]
    remote: frozenset[tuple[int, int]]
    early: EarlyStarts
    outputs: tuple[tuple[int, Source, bool], ...]

    @classmethod
    def of(cls, wiring: Wiring, networks: Sequence[ExecutableNetwork], executors: Sequence[Executor]) -> Dataflow:
        """Decide which values are bound once, and which of them stay on their device."""
        bound = {
            (source.part, source.index)
            for part in wiring.parts
            for source in part.inputs
            if source.part != NETWORK and source.lengths is None and _is_bindable(networks[source.part], source.index)
        }
        remote = frozenset(
            (source.part, source.index)
            for part in wiring.parts
            for source in part.inputs
            if wiring.stays_on_device(part, source)
            and (source.part, source.index) in bound
            and networks[source.part].context is not None
        )

        def is_bound_for(part: PartWiring, source: Source) -> bool:
            if source.lengths is not None or (source.part, source.index) not in bound:
                return False
            return (source.part, source.index) not in remote or wiring.stays_on_device(part, source)

        read = {(s.part, s.index) for part in wiring.parts for s in part.inputs if not is_bound_for(part, s)}
        read |= {(source.part, source.index) for source in wiring.outputs}
        # Lengths are read from an array, whether it is bound or not.
        read |= {(s.part, s.index) for part in wiring.parts for s in part.inputs if s.lengths is not None}
        links = []
        for number, part in enumerate(wiring.parts):
            once: list[tuple[int, Source]] = []
            each: list[tuple[int, Source]] = []
            for position, source in enumerate(part.inputs):
                (once if is_bound_for(part, source) else each).append((position, source))
            kept = tuple(index for index in range(part.output_count) if (number, index) in read)
            written = tuple(index for index in range(part.output_count) if (number, index) in bound)
            links.append(PartLinks(written, tuple(once), tuple(each), kept))
        buffers = tuple(sorted(bound))
        outputs = tuple(_outputs(wiring, bound - remote))
        early = EarlyStarts(wiring)
        return cls(wiring, tuple(networks), tuple(executors), tuple(links), buffers, remote, early, outputs)

    def new_buffers(self) -> dict[tuple[int, int], NDArray[np.generic] | RemoteTensor]:
        """Memory of one request for values that are written by one part and read by another without a copy."""
        buffers: dict[tuple[int, int], NDArray[np.generic] | RemoteTensor] = {}
        for part, index in self.buffers:
            network = self.networks[part]
            port = network.outputs[index]
            if (part, index) in self.remote and network.context is not None:
                buffers[part, index] = network.context.create_tensor(port.element_type, port.shape.get_shape())
            else:
                buffers[part, index] = _empty(port.shape.get_shape(), port.element_type.numpy)
        return buffers


def _outputs(wiring: Wiring, bound: set[tuple[int, int]]) -> Iterator[tuple[int, Source, bool]]:
    """The network outputs: new arrays of parts are returned once; inputs and bound memory are copied."""
    given: set[Source] = set()
    for index, source in enumerate(wiring.outputs):
        yield index, source, source.part == NETWORK or (source.part, source.index) in bound or source in given
        given.add(source)


def _empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    count = int(np.prod(shape, dtype=np.int64))
    return empty_aligned(max(count * dtype.itemsize, 1))[: count * dtype.itemsize].view(dtype).reshape(shape)


def _is_bindable(network: ExecutableNetwork, index: int) -> bool:
    value_type = network.outputs[index].type
    if not isinstance(value_type, TensorType) or value_type.shape.is_dynamic:
        return False
    return value_type.element_type.numpy != np.dtype(object)
