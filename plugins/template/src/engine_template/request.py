"""The synchronous request: one inference as stages. The engine derives the asynchronous request from it."""

from __future__ import annotations

import time

import numpy as np

from engine.ops.interruption import interruptible
from engine.plugin_api import RequestOwner, SyncInferRequest
from engine_template.context import TemplateTensor
from engine_template.memory import Budget
from engine_template.program import Program, Value


class TemplateInferRequest(SyncInferRequest):
    """Holds the state of one inference: its copy of the device memory table."""

    def __init__(self, network: RequestOwner, program: Program, budget: Budget | None = None) -> None:
        super().__init__(network)
        self.program = program
        self.budget = budget
        self.memory: list[Value] = []

    def infer_preprocess(self) -> None:
        """Host: bring inputs to the device. The engine has already checked names, types and shapes."""
        if self.budget is not None:
            self.budget.require([np.shape(value) for value in self.inputs])
        self.memory = self.program.memory.copy()
        for slot, value in zip(self.program.inputs, self.inputs, strict=True):
            if isinstance(value, TemplateTensor):  # it is on the device already
                value = value.device_array
            elif self.context is not None and isinstance(value, np.ndarray):
                self.context.count_transfer(to_device=value.nbytes)
            self.memory[slot] = value

    def start_pipeline(self) -> None:
        """Device: run the program. A real device enqueues its commands here and returns."""
        # A loop inside an operation checks too: it may be endless.
        with interruptible(self.check_cancelled):
            self._run_operations()

    def _run_operations(self) -> None:
        memory = self.memory
        for operation in self.program.operations:
            self.check_cancelled()
            start = time.perf_counter_ns() if self.is_profiling else 0
            values = operation.run([memory[slot] for slot in operation.inputs])
            if self.is_profiling:
                self.record_node(operation.name, operation.op_type, "native", start, time.perf_counter_ns())
            for slot, value in zip(operation.outputs, values, strict=True):
                memory[slot] = value
            for slot in operation.frees:
                memory[slot] = None

    def wait_pipeline(self) -> None:
        """Device: wait for enqueued commands. This device computes in `start_pipeline`, so there are none."""

    def infer_postprocess(self) -> None:
        """Host: bring results back. Outputs are copied, since they may share memory with inputs or constants."""
        on_device = []
        for index, slot in enumerate(self.program.outputs):
            value = self.memory[slot]
            tensor = self.remote_output(index, np.shape(value)) if isinstance(value, np.ndarray) else None
            if isinstance(tensor, TemplateTensor):
                on_device.append((tensor, value.copy()))
                continue
            if self.context is not None and isinstance(value, np.ndarray):
                self.context.count_transfer(to_host=value.nbytes)
            self.store_output(index, value)
        # Last, since a result may share memory with an input, and the input with an output.
        for tensor, value in on_device:
            tensor.device_array[...] = value
        self.memory = []

    def abort_pipeline(self) -> None:
        """After an error or a cancellation: release the memory of the inference."""
        self.memory = []
