"""The synchronous request: one inference over a program's parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.native import CancelFlag
from engine.plugin_api import RequestOwner, SyncInferRequest
from engine_cpu.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine_cpu.program import Value


class CpuInferRequest(SyncInferRequest):
    """Holds no memory: a plan's context is taken from a pool for each inference and returned."""

    def __init__(self, network: RequestOwner, find_program: Callable[[Sequence[Value]], Program]) -> None:
        super().__init__(network)
        self._find_program = find_program
        self.cancel = CancelFlag()

    def start_pipeline(self) -> None:
        """Run the program."""
        self.cancel.reset()
        self.check_cancelled()  # a cancellation before the reset
        program = self._find_program(self.inputs)
        values = program.run(self.inputs, self, self.output_buffer)
        for index, _ in program.unbound_outputs:
            # It may share memory with an input, a constant or another output.
            self.store_output(index, values[index])

    def request_cancel(self, error: EngineError) -> None:
        """See `SyncInferRequest`; a running plan stops between two steps."""
        super().request_cancel(error)
        self.cancel.cancel()
