"""The request: one run of the session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from engine.plugin_api import (
    DeviceError,
    EngineError,
    PluginContractError,
    RemoteTensor,
    RequestOwner,
    SyncInferRequest,
)
from engine_onnxruntime.runtime import Session, load_runtime, said
from engine_onnxruntime.tensors import run_in_context

Run: TypeAlias = Callable[[Session, Sequence[Any], Any], list[Any]]
"""One inference: the session, the inputs in order, and the runtime's options of the run."""


class OnnxRuntimeRequest(SyncInferRequest):
    """Passes arrays to the runtime and takes over those that it returns, neither with a copy.

    `nodes` are the names of the nodes, for profiles: the runtime tells no times of single inferences.
    """

    def __init__(self, network: RequestOwner, session: Session, run: Run, nodes: Sequence[str]) -> None:
        super().__init__(network)
        self._session, self._run, self._nodes = session, run, nodes
        self._runtime = f"onnxruntime {load_runtime().__version__}"
        self._options = load_runtime().RunOptions()
        self._options.log_severity_level = 4

    def start_pipeline(self) -> None:
        """Run the session. Raises `DeviceError` with the runtime's words, or if its values do not fit."""
        self._options.terminate = False
        self.check_cancelled()  # a cancellation that came before the line above
        start = time.perf_counter_ns()
        try:
            if self.context is None:
                values = self._run(self._session, self.inputs, self._options)
            else:
                values = run_in_context(self, self._session, self.inputs, self._options)
        except EngineError:
            raise
        except Exception as e:  # the classes of the runtime have no common base
            self.check_cancelled()
            raise DeviceError(f"{self._where}: {said(e)}") from e
        if self.is_profiling and self._nodes:
            self.record_subgraph(self._nodes, start, time.perf_counter_ns(), kernel=self._runtime)
        expected = len(self._session.outputs)
        if len(values) != expected:
            raise DeviceError(f"{self._where} returned {len(values)} outputs; expected {expected}")
        arrays = [value for value in self.inputs if isinstance(value, np.ndarray)]
        for index, value in enumerate(values):
            if isinstance(value, RemoteTensor):
                continue  # it is written already
            is_input = isinstance(value, np.ndarray) and any(np.may_share_memory(value, each) for each in arrays)
            try:
                self.store_output(index, value, copy=is_input)
            except PluginContractError as e:
                raise DeviceError(f"{self._where} returned another value than the model's types promise: {e}") from e

    def request_cancel(self, error: EngineError) -> None:
        """The runtime looks at `terminate` between two nodes, also of a loop's body."""
        super().request_cancel(error)
        self._options.terminate = True

    @property
    def _where(self) -> str:
        return f"{self.signature.network}: request {self.request_id}: {self._runtime}"


def run_arrays(session: Session, inputs: Sequence[Any], options: Any) -> list[Any]:
    """One inference with values of numpy. Raises exceptions of the runtime."""
    values: list[Any] = session.handle.run(session.outputs, dict(zip(session.inputs, inputs, strict=True)), options)
    return values
