"""One request, which waits for others, and takes its part of the result of their batch."""

from __future__ import annotations

from engine.plugin_api import EngineError, Executor, InputError, RequestOwner, SyncInferRequest
from engine.runtime.executors import Task
from engine_batch.collector import Collector, Item


class BatchInferRequest(SyncInferRequest):
    """A request that joins a batch for each inference and holds nothing between them."""

    def __init__(self, network: RequestOwner, collector: Collector) -> None:
        super().__init__(network)
        self._collector = collector
        self.item: Item | None = None

    def start_pipeline(self) -> None:
        """Join a batch. Raises `InputError` if the inputs differ in their first dimension."""
        first = self.inputs[0].shape[0]
        for port, value in zip(self.signature.inputs, self.inputs, strict=True):
            if value.shape[0] != first:
                raise InputError(
                    f"{self.signature.network}: the first dimension, the batch, of input `{port.name}` is "
                    f"{value.shape[0]}, but the one of `{self.signature.inputs[0].name}` is {first}; they must be equal"
                )
        key = tuple(value.shape[1:] for value in self.inputs)
        item = self.item = Item(self.inputs, first, key)
        self._collector.add(item)

    def wait_pipeline(self) -> None:
        """Wait for the batch. Raises the error of this request."""
        item = self.item
        assert item is not None
        if self.cancellation is not None:
            self._collector.withdraw(item)
        item.wait()
        self.check_cancelled()
        if item.error is not None:
            raise item.error

    def infer_postprocess(self) -> None:
        """Copy this request's part of the outputs, so that it does not keep other requests' parts in memory."""
        item, self.item = self.item, None
        assert item is not None
        assert item.outputs is not None
        for index, output in enumerate(item.outputs):
            self.store_output(index, output)
        if self.is_profiling:
            self.record_nodes(item.profile)

    def abort_pipeline(self) -> None:
        """Leave the batch, if it has not begun."""
        item, self.item = self.item, None
        if item is not None:
            self._collector.withdraw(item)

    def request_cancel(self, error: EngineError) -> None:
        """Also leave the batch, which runs without this request, or whose result is not used for it."""
        super().request_cancel(error)
        item = self.item
        if item is not None:
            self._collector.withdraw(item)


class Arrival(Executor):
    """Runs the last stages of a request on a thread of the batches, once its batch is done; no thread waits for it."""

    def __init__(self, request: BatchInferRequest, collector: Collector) -> None:
        self.name = "BATCH"
        self._request = request
        self._collector = collector

    def submit(self, task: Task) -> None:
        """Have `task` run when the request's batch is done."""
        self._collector.when_done(self._request.item, task)

    def owns_current_thread(self) -> bool:
        """Whether waiting for the request on this thread would wait for itself."""
        return self._collector.owns_current_thread()
