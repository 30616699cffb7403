"""The synchronous request: upload, compute, download."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.plugin_api import EngineError, RequestOwner, SyncInferRequest
from engine_opencl.execution.context import Target
from engine_opencl.plan import Buffer
from engine_opencl.remote.tensor import OpenclTensor

if TYPE_CHECKING:
    from engine_opencl.execution.context import Context
    from engine_opencl.execution.pool import ContextPool

_log = logging.getLogger("engine.opencl")
HOST: Final = "host"
DEVICE: Final = "OPENCL"


class OpenclInferRequest(SyncInferRequest):
    """Takes a context (memory and bound kernels) for each inference, and returns it."""

    def __init__(self, network: RequestOwner, pool: ContextPool) -> None:
        super().__init__(network)
        self._pool = pool
        self._context: Context | None = None
        self._remote: set[int] = set()
        """The outputs that stay on the device."""

    def infer_preprocess(self) -> None:
        """Bring the inputs to the device."""
        self._context = context = self._pool.take(self.inputs)
        plan = context.plan
        targets = []
        for index in range(len(plan.outputs)) if self.has_output_tensors else ():
            # A tensor for an output of unknown length is filled by `store_output`.
            if isinstance(plan.outputs[index], Buffer) and plan.counts[index] is None:
                tensor = self.remote_output(index, plan.shapes[index])
                if isinstance(tensor, OpenclTensor):
                    targets.append(Target(index, tensor, self.can_write_early(index)))
        self._remote = {target.index for target in targets}
        context.upload(self.inputs, targets)

    def start_pipeline(self) -> None:
        """Enqueue all kernels; `wait_pipeline` waits for them."""
        assert self._context is not None
        self._context.compute(self.check_cancelled)

    def wait_pipeline(self) -> None:
        """Wait until the kernels have ended."""
        assert self._context is not None
        self._context.wait()

    def infer_postprocess(self) -> None:
        """Fetch the outputs, directly into the user's arrays if set."""
        context = self._context
        assert context is not None
        fetched = 0
        for index, output in enumerate(context.plan.outputs):
            if index in self._remote:
                continue
            if isinstance(output, Buffer):
                begun = time.perf_counter_ns() if self.is_profiling else 0
                buffer = self._fetched(context, index)
                fetched += buffer.nbytes
                if self.is_profiling:
                    name = self.signature.result_checks[index].port.name
                    self.record_transfer(name, DEVICE, HOST, buffer.nbytes, begun, time.perf_counter_ns())
            else:
                self.store_output(index, self.inputs[output] if isinstance(output, int) else output)
        if self.context is not None:
            self.context.count_transfer(to_device=context.copied_bytes, to_host=fetched)
        if self.is_profiling:
            uploads = context.upload_spans()
            size = context.copied_bytes if len(uploads) == 1 else None  # several spans share the bytes
            for start, end in uploads:
                self.record_transfer("inputs", HOST, DEVICE, size, start, end)
            names: dict[str, int] = {}
            for node in context.profiles():
                names[node.name] = count = names.get(node.name, 0) + 1
                name = node.name if count == 1 else f"{node.name} ({count})"
                self.record_nodes([replace(node, name=name, node="" if count == 1 else node.name)])
        self._pool.put(context)
        self._context = None

    def _fetched(self, context: Context, index: int) -> NDArray[Any]:
        """An output on the host, which is set."""
        shape = context.shape(index)
        if context.plan.counts[index] is None:
            buffer = self.output_buffer(index, shape)
            context.download(index, buffer)
        else:
            buffer = np.empty(shape, self.signature.outputs[index].element_type.numpy)
            context.download(index, buffer)
            self.store_output(index, buffer, copy=False)
        return buffer

    def abort_pipeline(self) -> None:
        """Wait for enqueued commands, so that the context can be used again; a failed context is freed."""
        context, self._context = self._context, None
        if context is None:
            return
        try:
            context.drain()
        except EngineError as e:
            _log.warning("%s", e)
        else:
            if not context.has_failed:
                self._pool.put(context)
