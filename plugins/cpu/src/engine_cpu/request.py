"""The synchronous request: one inference over a program's parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.native import CancelFlag
from engine.plugin_api import RequestOwner, SyncInferRequest
from engine_cpu.program import NativeSegment, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine_cpu.program import Value


class CpuInferRequest(SyncInferRequest):
    """Holds no memory: a plan's context is taken from a pool for each inference and returned."""

    def __init__(self, network: RequestOwner, find_program: Callable[[Sequence[Value]], Program]) -> None:
        super().__init__(network)
        self._find_program = find_program
        self._last: NativeSegment | None = None
        self.cancel = CancelFlag()
        self._is_flag_set = False

    def bind_again(self, inputs: object) -> list[Value] | None:
        """See `SyncInferRequest`; one native call."""
        return None if self._last is None else self._last.bind(self.signature.input_index, self.inputs, inputs)

    def clear_tensors(self) -> None:
        """See `SyncInferRequest`."""
        super().clear_tensors()
        self._last = None  # with dynamic shapes, a plan that the network may have dropped

    def start_pipeline(self) -> None:
        """Run the program."""
        if self._is_flag_set:  # by a cancellation of this inference or of the last one
            self._is_flag_set = False
            self.cancel.reset()
        self.check_cancelled()  # a cancellation before the reset
        if self.is_bound_again and self._last is not None:
            self.store_outputs(self._last.run_new(self.inputs, self), are_known=True)
            return
        self._last = None
        program = self._find_program(self.inputs)
        if program.whole is not None and not self.has_output_tensors and not self.is_profiling:
            self.store_outputs(program.whole.run_new(self.inputs, self))
            self._last = program.whole
            return
        values = program.run(self.inputs, self, self.output_buffer)
        for index, _ in program.unbound_outputs:
            # It may share memory with an input, a constant or another output.
            self.store_output(index, values[index])

    def request_cancel(self, error: EngineError) -> None:
        """See `SyncInferRequest`; a running plan stops between two steps."""
        super().request_cancel(error)
        self.cancel.cancel()
        self._is_flag_set = True  # last, so that a reset cannot come before the cancellation
