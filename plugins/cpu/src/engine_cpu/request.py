"""The synchronous request: one inference over a program's parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from engine.errors import EngineError, InputError
from engine.native import CancelFlag
from engine.plugin_api import RequestOwner, SyncInferRequest
from engine.runtime.growing import plain
from engine_cpu.program import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine_cpu.families import BoundFamily
    from engine_cpu.segments.segment import Segment, Value


class FindProgram(Protocol):
    """Finds the program for the values of the inputs; see `Programs.get`."""

    def __call__(self, inputs: Sequence[Value], *, may_assume: bool) -> Program | BoundFamily:
        """Return the program."""


class CpuInferRequest(SyncInferRequest):
    """Holds no memory: a plan's context is taken from a pool for each inference and returned."""

    def __init__(self, network: RequestOwner, find_program: FindProgram) -> None:
        super().__init__(network)
        self._find_program = find_program
        self._last: Segment | None = None
        self.cancel = CancelFlag()
        self._is_flag_set = False
        self._was_assuming = self._is_elsewhere = False
        """Whether the last program assumed that the model appends to variables, and whether it is known not to."""

    def bind_again(self, inputs: object) -> list[Value] | None:
        """As `SyncInferRequest.bind_again`, in one native call."""
        return None if self._last is None else self._last.bind(self.signature.input_index, self.inputs, inputs)

    def clear_tensors(self) -> None:
        """Release all tensors, and the tensors that the last run has bound."""
        super().clear_tensors()
        self._last = None  # with dynamic shapes, a plan that the network may have dropped

    def start_pipeline(self) -> None:
        """Run the program in this thread, unless the inference was cancelled before it started."""
        if self._is_flag_set:  # by a cancellation of this inference or of the last one
            self._is_flag_set = False
            self.cancel.reset()
        self.check_cancelled()  # a cancellation before the reset
        if self.is_bound_again and self._last is not None:
            self.store_outputs(self._last.run_new(self.inputs, self), are_known=True)
            return
        self._last = None
        if self._is_elsewhere and self.states is not None and self.states.is_initial:
            self._is_elsewhere = False
        self._was_assuming = False  # also if no program is found
        try:
            self._run(self._find_program(self.inputs, may_assume=not self._is_elsewhere))
        except InputError:
            if self._is_elsewhere or not self._was_assuming:
                raise
            # The model may write at positions other than behind the past, as for padded prompts; variables are then
            # copied.
            self._run(self._find_program(self.inputs, may_assume=False))
            self._is_elsewhere = True

    def _run(self, program: Program | BoundFamily) -> None:
        self._was_assuming = not isinstance(program, Program) and program.is_assuming
        is_plain = not self.has_output_tensors and not self.is_profiling
        if not isinstance(program, Program):
            values = program.run(self.inputs, self, None if is_plain else self.output_buffer)
            if is_plain:
                self.store_outputs(values, are_known=program.family.is_checked)
                program.family.is_checked = True
            for index in () if is_plain else program.states:
                self.store_output(index, values[index], copy=False)
            return
        inputs = [plain(value) for value in self.inputs] if self.states is not None else self.inputs
        if is_plain and program.whole is not None:
            self.store_outputs(program.whole.run_new(inputs, self))
            self._last = program.whole
            return
        values = program.run(inputs, self, self.output_buffer)
        for index, _ in program.unbound_outputs:
            # It may share memory with an input, a constant or another output.
            self.store_output(index, values[index])

    def request_cancel(self, error: EngineError) -> None:
        """See `SyncInferRequest`; a running plan stops between two steps."""
        super().request_cancel(error)
        self.cancel.cancel()
        self._is_flag_set = True  # last, so that a reset cannot come before the cancellation
