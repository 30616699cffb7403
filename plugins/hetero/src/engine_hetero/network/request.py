"""One inference over all parts: each runs on its device in turn, or earlier if possible."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from engine.errors import with_message
from engine.plugin_api import (
    AsyncInferRequest,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    NodeProfile,
    RemoteTensor,
    RequestOwner,
    SyncInferRequest,
)
from engine.runtime.deadlines import deadline_timer
from engine.runtime.lifecycle import ForkSafeLock
from engine.runtime.records import SUBGRAPH
from engine_hetero.network.dataflow import Dataflow
from engine_hetero.network.turns import Turns
from engine_hetero.wiring.wiring import NETWORK, Lengths, Source


class HeteroInferRequest(SyncInferRequest):
    """Holds one request of every part, and the memory of values passed between parts."""

    def __init__(self, network: RequestOwner, dataflow: Dataflow) -> None:
        super().__init__(network)
        self.dataflow = dataflow
        self.requests: list[AsyncInferRequest] = [part.create_infer_request() for part in dataflow.networks]
        self._buffers = dataflow.new_buffers()
        for part in range(len(self.requests)):
            self._bind(part)
        self.values: list[dict[int, Any]] = [{} for _ in self.requests]
        self.turns = Turns(len(self.requests))
        self._early: Mapping[int, tuple[int, ...]] = {}
        self._times: list[tuple[int, int]] = [(0, 0)] * len(self.requests)
        self._cancelling = ForkSafeLock()
        self._is_running = False

    def clear_tensors(self) -> None:
        """Release all tensors, including the parts' tensors, except the memory between parts."""
        super().clear_tensors()
        for part, links in enumerate(self.dataflow.links):
            if links.inputs or links.kept:
                self._clear(part)

    def _clear(self, part: int) -> None:
        self.requests[part].clear_tensors()
        self._bind(part)

    def _bind(self, part: int) -> None:
        """Bind the memory that a part shares with others."""
        links, request = self.dataflow.links[part], self.requests[part]
        for index in links.bound_outputs:
            request.set_output_tensor(index, self._buffers[part, index])
        for position, source in links.bound_inputs:
            request.set_input_tensor(position, self._buffers[source.part, source.index])

    # -- stages -------------------------------------------------------------------------------------------

    def infer_preprocess(self) -> None:
        """Start: parts that do not depend on the first one start concurrently with it."""
        self._is_running = True
        self._early = self.dataflow.early.choose()
        if self._early:
            self.turns.begin()
            self._start_early(NETWORK)

    def start_pipeline(self) -> None:
        """Run all parts in this thread, except those started early on other devices."""
        for part in range(len(self.requests)):
            self.check_cancelled()
            self.run_part(part)

    def infer_postprocess(self) -> None:
        """Return the outputs, which are new arrays, and release everything else."""
        self._end()
        for index, source, copy in self.dataflow.outputs:
            self.store_output(index, self._value(source), copy=copy)
        if self.is_profiling:
            self._record()
        self._forget_values()

    def abort_pipeline(self) -> None:
        """Stop all parts of an inference that has ended."""
        self._end()
        if self._early:
            running, pause = self.turns.abandon(), _FIRST_RETRY
            while running and not self.turns.is_idle_within(pause):
                for part in running:  # repeatedly: one may be about to start
                    self.requests[part].cancel()
                pause = min(2 * pause, 1.0)
        for part in range(len(self.requests)):
            self._clear(part)  # a failed part keeps its error, whose traceback refers to this request
        self._forget_values()

    def _end(self) -> None:
        """Stop cancelling parts, so that the next inference is not affected."""
        with self._cancelling:
            self._is_running = False

    def part_stage(self, part: int) -> Callable[[], None]:
        """The stage of an asynchronous inference that runs one part."""

        def stage() -> None:
            self.run_part(part)

        stage.__name__ = f"subgraph_{part}"
        return stage

    def request_cancel(self, error: EngineError) -> None:
        """Cancel the request, and the parts that run."""
        super().request_cancel(error)
        self._cancel_parts(error, _FIRST_RETRY)

    def _cancel_parts(self, error: EngineError, retry: float) -> None:
        """Cancel the running parts repeatedly until the inference has ended: one may be about to start."""
        with self._cancelling:
            if self.cancellation is not error or not self._is_running:
                return
            for request in self.requests:
                request.cancel()
        deadline_timer.call_after(retry, partial(self._cancel_parts, error, min(2 * retry, 1.0)))

    # -- parts --------------------------------------------------------------------------------------------

    def run_part(self, part: int) -> None:
        """Run a part, or wait for it if it was started early, then start the parts that start early after it.

        Raises the part's error, of the same class, naming device, part and cause.
        """
        if not self._early:  # no early starts: each part runs in turn
            self._infer(part)
            return
        if self.turns.claim(part):
            self._finish(part)
        self.turns.wait(part)
        self._start_early(part)

    def _start_early(self, after: int) -> None:
        for part in self._early.get(after, ()):
            self.dataflow.executors[part].submit(partial(self._run_early, part, self.turns.inference))

    def _run_early(self, part: int, inference: int) -> None:
        if self.turns.claim(part, inference):  # otherwise its turn came first, or the inference has ended
            self._finish(part)

    def _finish(self, part: int) -> None:
        """Run a claimed part; its error is raised at its turn."""
        error: BaseException | None = None
        try:
            self.check_cancelled()
            self._infer(part)
        except BaseException as e:
            error = e
        self.turns.finish(part, error)
        del error  # its traceback refers to this frame

    def _infer(self, part: int) -> None:
        links, request = self.dataflow.links[part], self.requests[part]
        start = time.perf_counter_ns()
        try:
            request.infer(self._read(part) if self.is_profiling else {p: self._value(s) for p, s in links.inputs})
            if links.kept:
                values = self.values[part]
                for index in links.kept:
                    values[index] = request.get_output_tensor(index)
        except EngineError as e:
            raise self._explained(part, e) from e
        end = time.perf_counter_ns()
        self._times[part] = start, end
        if self.dataflow.early.is_possible:
            self.dataflow.early.add_measurement(part, (end - start) * 1e-9)

    def _read(self, part: int) -> dict[int, Any]:
        """The inputs of a part that are not bound, with records of all values that come from other parts."""
        links, found = self.dataflow.links[part], {}
        for position, source in links.inputs:
            start = time.perf_counter_ns()
            found[position] = value = self._value(source)
            if source.part != NETWORK:
                self._record_crossing(part, source, getattr(value, "nbytes", None), start)
        for _, source in links.bound_inputs:  # in memory that both parts share
            self._record_crossing(part, source, self._buffers[source.part, source.index].nbytes)
        return found

    def _record_crossing(self, part: int, source: Source, size: int | None, start: int | None = None) -> None:
        name = self.dataflow.networks[source.part].outputs[source.index].name
        end = time.perf_counter_ns()
        self.record_transfer(name, self._described(source.part), self._described(part), size, start or end, end)

    def _described(self, part: int) -> str:
        return f"{part}: {self.dataflow.wiring.parts[part].device}"

    def _value(self, source: Source) -> Any:
        if source.part == NETWORK:
            value = self.inputs[source.index]
        else:
            values = self.values[source.part]
            value = values[source.index]
            if source.lengths is None and isinstance(value, RemoteTensor):
                value = values[source.index] = value.to_host()  # once, for all readers on other devices
        return value if source.lengths is None else _lengths(value, source.lengths)

    def _explained(self, part: int, error: EngineError) -> EngineError:
        """The error with the part and device where it happened."""
        self.check_cancelled()
        if isinstance(error, (Cancelled, DeadlineExceeded)):
            return error
        wiring = self.dataflow.wiring.parts[part]
        text = (
            f"{self.signature.network}: subgraph {part} of {len(self.requests)} ({wiring.node_count} nodes) failed on "
            f"{wiring.device}: {error}"
        )
        return with_message(error, text)

    def _record(self) -> None:
        """One record for each part, then the records of its nodes, with names that are unique in the inference."""
        names = {f"subgraph {part}" for part in range(len(self.requests))}
        for part, request in enumerate(self.requests):
            device = self.dataflow.wiring.parts[part].device
            start, end = self._times[part]
            self.record_nodes(
                [NodeProfile(f"subgraph {part}", SUBGRAPH, device, start, end - start, part=self._described(part))]
            )
            for node in request.profiling_info.nodes:
                name = node.name
                while name in names:
                    name += f" (subgraph {part})"
                names.add(name)
                own = "" if name == node.node_name else node.node_name
                self.record_nodes([replace(node, name=name, part=self._described(part), node=own)])
            self.record_transfers(request.profiling_info.transfers)

    def _forget_values(self) -> None:
        for values in self.values:
            values.clear()


_FIRST_RETRY: Final = 0.001
"""Seconds after which parts are cancelled again."""


def _lengths(value: Any, lengths: Lengths) -> np.ndarray[Any, Any]:
    if lengths.is_size:
        return np.array(math.prod(value.shape), np.int64)
    return np.array(value.shape[lengths.start : lengths.end], np.int64)
