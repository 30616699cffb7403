"""The request: one run of the session."""

from __future__ import annotations

import numpy as np

from engine.plugin_api import DeviceError, EngineError, PluginContractError, RequestOwner, SyncInferRequest
from engine_onnxruntime.runtime import Session, load_runtime, said


class OnnxRuntimeRequest(SyncInferRequest):
    """Passes arrays to the runtime and takes over those that it returns, neither with a copy."""

    def __init__(self, network: RequestOwner, session: Session) -> None:
        super().__init__(network)
        self._session = session
        self._options = load_runtime().RunOptions()
        self._options.log_severity_level = 4

    def start_pipeline(self) -> None:
        """Run the session. Raises `DeviceError` with the runtime's words, or if its values do not fit."""
        self._options.terminate = False
        self.check_cancelled()  # a cancellation that came before the line above
        try:
            inputs = dict(zip(self._session.inputs, self.inputs, strict=True))
            values = self._session.handle.run(self._session.outputs, inputs, self._options)
        except Exception as e:  # the classes of the runtime have no common base
            self.check_cancelled()
            raise DeviceError(f"{self._where}: {said(e)}") from e
        expected = len(self.signature.outputs) + len(self.signature.states)
        if len(values) != expected:
            raise DeviceError(f"{self._where} returned {len(values)} outputs; expected {expected}")
        arrays = [value for value in self.inputs if isinstance(value, np.ndarray)]
        for index, value in enumerate(values):
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
        return f"{self.signature.network}: request {self.request_id}: onnxruntime {load_runtime().__version__}"
