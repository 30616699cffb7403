"""One inference: on the device that is used now, and again on the next one if the device fails."""

from __future__ import annotations

from typing import Final

from engine.errors import DeclarationError, StateError
from engine.plugin_api import (
    Cancelled,
    ContextClosed,
    DeadlineExceeded,
    EngineError,
    ExecutableNetwork,
    Executor,
    InputError,
    RequestOwner,
    SyncInferRequest,
)
from engine.runtime.executors import Task
from engine_auto.candidate import Candidate
from engine_auto.selection import Selection
from engine_auto.sequences import SequenceSelection

OF_THE_REQUEST: Final = (InputError, Cancelled, DeadlineExceeded, StateError, ContextClosed, DeclarationError)
"""Errors that the request, or the model, causes: another device would also raise them."""


class AutoInferRequest(SyncInferRequest):
    """Holds a request of the network that ran its last inference."""

    def __init__(self, network: RequestOwner, selection: Selection) -> None:
        super().__init__(network)
        self._selection = selection
        self._inner: tuple[ExecutableNetwork, SyncInferRequest] | None = None
        self._sequence = selection.new_place(self) if isinstance(selection, SequenceSelection) else None

    def clear_tensors(self) -> None:
        """Release all tensors, and the request on the device."""
        super().clear_tensors()
        self._inner = None

    def start_pipeline(self) -> None:
        """Run the inference on the device that is used now.

        If the device fails and another one succeeds, the first one is given up. If all fail, the inference is the
        cause, and the first error is raised.
        """
        selection = self._selection
        if selection.wants_shapes:
            shapes = zip(self.signature.inputs, self.inputs, strict=False)
            seen = {port.name: value.shape for port, value in shapes if hasattr(value, "shape")}
            if all(0 not in shape for shape in seen.values()):  # without data, there is nothing to measure
                selection.note_shapes(seen)
        if self._sequence is not None:
            assert isinstance(selection, SequenceSelection)
            is_first = self.states is not None and self.states.is_initial
            candidate, network = selection.place_sequence(self._sequence, self)
        else:
            is_first = True
            candidate, network = selection.now()
        try:
            self._run_on(network)
        except OF_THE_REQUEST:
            raise
        except EngineError as error:
            if not is_first or not self._runs_elsewhere(candidate, error):
                raise

    def infer_postprocess(self) -> None:
        """The sequence may have ended; the values of the variables show it."""
        if self._sequence is not None:
            self._sequence.is_running = False

    def abort_pipeline(self) -> None:
        """Note that the sequence no longer runs, as `infer_postprocess` does."""
        if self._sequence is not None:
            self._sequence.is_running = False

    def _run_on(self, network: ExecutableNetwork) -> None:
        if self._inner is None or self._inner[0] is not network:
            self._inner = network, network.create_sync_request()
        self.run_through(self._inner[1])

    def _runs_elsewhere(self, failed: Candidate, error: EngineError) -> bool:
        self.check_cancelled()
        for candidate, network in self._selection.others(failed, self.check_cancelled):
            try:
                self._run_on(network)
            except OF_THE_REQUEST:
                raise
            except EngineError as e:
                error.add_note(f"also on {candidate.name}: {type(e).__name__}: {e}")
                continue
            self._selection.leave(failed, error, candidate, network)
            if self._sequence is not None:
                self._sequence.home = candidate
            return True
        return False


class CurrentExecutor(Executor):
    """The executor of the device that is used now."""

    def __init__(self, selection: Selection) -> None:
        self.name = "AUTO"
        self._selection = selection

    def submit(self, task: Task) -> None:
        """Run `task` on a thread for the device."""
        self._selection.executor.submit(task)

    def owns_current_thread(self) -> bool:
        """Whether the thread belongs to any of the devices."""
        executors = [candidate.executor for candidate in self._selection.candidates]
        return any(executor is not None and executor.owns_current_thread() for executor in executors)
