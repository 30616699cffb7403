"""`AsyncInferRequest`, the request that users hold: runs the stages of a synchronous request on executors."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeGuard

from engine.errors import (
    Busy,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    InferError,
    InputError,
    PluginContractError,
    StateError,
)
from engine.runtime.executors import Executor
from engine.runtime.lifecycle import Participant, lifecycle
from engine.runtime.remote import RemoteTensor
from engine.runtime.result import InferResult, ProfilingInfo
from engine.runtime.run import CallbackFailure, RequestState, Run, require_callable, seconds, wake
from engine.runtime.states import States, VariableState
from engine.runtime.sync_request import Stage, SyncInferRequest
from engine.runtime.values import Array, PortCheck, Value

if TYPE_CHECKING:
    import asyncio

Pipeline: TypeAlias = Sequence[tuple[Executor, Stage]]


class AsyncInferRequest(Participant):
    """Runs one inference at a time, in the background or in the calling thread; reusable after any outcome.

    What applications use first:

        request = network.create_infer_request()
        result = request.infer({"x": array})             # in this thread; result["y"] is an array
        request.start_async({"x": array}, deadline=60)   # in the background; seconds
        request.wait()                                   # or: await request; raises the error of the inference
        request.results["y"]
        request.set_input_tensor("x", array)             # stays bound; used in place
        request.set_output_tensor("y", buffer)           # inferences write the output there
        request.set_callback(lambda request, error: ...)
        request.cancel()
        request.profiling_info.nodes                     # if compiled with PERF_COUNT
        request.query_state(), request.reset_state()     # of a stateful model

    Created by `ExecutableNetwork.create_infer_request`. Adjacent stages of one executor run without a hop between
    them. Every method may be called from any thread; those that access tensors raise `Busy` while an inference
    runs. The request keeps its network alive, and an inference in flight keeps the request alive.

    Args:
        request: its stages are run; it must be used through this object only.
        pipeline: (executor, stage) in order; together they are equivalent to `request.infer`.
        callback_executor: runs the completion callback.
        network: the network that created the request.
    """

    def __init__(
        self, request: SyncInferRequest, pipeline: Pipeline, callback_executor: Executor, network: object = None
    ) -> None:
        self._request = request
        self._steps = _grouped(request, pipeline)
        self._callback_executor = callback_executor
        self._network: Any = network
        self._overrides: Any = getattr(network, "overrides", None)
        self._pending: dict[str, Value] = {}
        self._name = f"{request.signature.network}: request {request.request_id}"
        self._callback: Callback | None = None
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._starts = 0
        lifecycle.track(self)

    def _repr_html_(self) -> str:
        from engine.drawing.html import html_table

        signature = self._request.signature
        rows = [("input", port.name, port.type) for port in signature.inputs]
        rows += [("output", port.name, port.type) for port in signature.outputs]
        return html_table(f"{self._name}, {self.state.value}", ("", "Name", "Type"), rows)

    def __repr__(self) -> str:
        return f"<{self._name}, {self.state.value}>"

    # -- running ------------------------------------------------------------------------------------------

    def infer(self, inputs: object = None) -> InferResult:
        """Run all stages in this thread and return the outputs; no callback is called.

        `inputs`: a mapping by name or index, a list in input order, or one array; omitted inputs, and initializers that
        were given, keep the tensors set before (`reset_initializers`). Raises `Busy`, `InputError`, `Cancelled`,
        `DeviceError` and the device's errors; `Cancelled` also when the interpreter exits.
        """
        run = former = None
        try:
            with self._lock:
                self._require_idle("infer")
                lifecycle.refuse_at_exit(self._name)
                if self._overrides is not None:
                    inputs = self._overridden(inputs)  # which may replace the request
                self._request.begin(inputs)
                run = Run(None)
                run.has_begun, run.thread = True, threading.get_ident()
                former, self._run = self._run, run
            del former  # outside the lock, since it may log
            run.result = self._request.run_stages()
            self._end(run, None)
        except EngineError as e:
            if run is None or self._run is not run:
                raise
            self._end(run, e)
        except BaseException as e:
            # An interrupt may come at any moment, also before the first stage.
            if run is not None and self._run is run:
                self._end(run, self._interrupted(e))
                self._release(run)  # the interrupt may have come in `_end`
            raise
        try:
            return run.outcome()
        finally:
            # The error's traceback refers to this frame: a reference from here to the request would be a cycle.
            del self, run

    def start_async(self, inputs: object = None, *, deadline: float | None = None) -> None:
        """Start an inference in the background.

        `inputs` as for `infer`; the arrays must not be changed until it is done. After `deadline` seconds it is
        cancelled and ends with `DeadlineExceeded`. Raises `Busy` and `InputError`, and `Cancelled` when the interpreter
        exits, without starting anything.
        """
        time_limit = None if deadline is None else seconds(deadline, "deadline")
        run = former = None
        try:
            with self._lock:
                self._require_idle("start_async")
                lifecycle.refuse_at_exit(self._name)
                if self._overrides is not None:
                    inputs = self._overridden(inputs)  # which may replace the request
                self._request.begin(inputs)
                run = Run(self._callback)
                if time_limit is not None:
                    from engine.runtime.deadlines import deadline_timer

                    late = DeadlineExceeded(f"{self._name} did not finish within its deadline of {time_limit:g} s")
                    run.deadline = deadline_timer.call_after(time_limit, partial(self._cancel, run, late))
                former, self._run = self._run, run
                self._starts += 1
            del former  # outside the lock, since it may log
            self._submit(run)
        except BaseException as e:
            # An interrupt, since `_submit` handles errors: the request must not stay busy forever.
            if run is not None and self._run is run:
                self._cancel(run, self._interrupted(e))
            elif run is not None and run.deadline is not None:
                run.deadline.cancel()
            raise

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the last started inference and its callback are done; raise its error, if any.

        Raises `DeadlineExceeded` after `timeout` seconds, but the inference keeps running and can be waited for again;
        `CallbackError`, once, if the callback raised; `InferError` if nothing was started, and on a thread
        that the inference itself needs, such as its callback's.
        """
        run = self._started()
        time_limit = None if timeout is None else seconds(timeout, "timeout", zero=True)
        if not run.is_done:
            self._require_may_wait(run)
            # Not a condition: Ctrl-C while one is waited for may release the lock that another thread holds.
            gate = threading.Lock()
            gate.acquire()
            with self._lock:
                if run.is_done:
                    gate.release()
                else:
                    run.gates.append(gate)
            if not gate.acquire(timeout=-1 if time_limit is None else time_limit):
                raise DeadlineExceeded(f"{self._name} has not finished after {time_limit:g} s; it keeps running")
        error = self._take_error(run)
        if error is not None:
            try:
                raise error
            finally:
                del self, run, error  # see `infer`

    def __await__(self) -> Generator[Any, None, InferResult]:
        """Wait like `wait`, without blocking the event loop, and return the results.

        Cancelling the awaiting task cancels the inference.
        """
        return self._awaited().__await__()

    async def _awaited(self) -> InferResult:
        import asyncio  # 6 MB; a caller that awaits has loaded it already

        run = self._started()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if not run.is_done:
                run.waiters.append(future)
            else:
                future.set_result(None)
        try:
            await future
        except asyncio.CancelledError:
            self._cancel(run, self._cancelled())
            raise
        error = self._take_error(run)
        try:
            if error is not None:
                raise error
            return run.outcome()
        finally:
            del self, run, error  # see `infer`

    def cancel(self) -> None:
        """Stop the running inference, if any: at once while it is queued, otherwise at its next `check_cancelled`.

        It then ends with `Cancelled`, even if its last stage does not check. Never blocks.
        """
        if self._run is not None:
            self._cancel(self._run, self._cancelled())

    def set_callback(self, callback: Callback | None) -> None:
        """Have `callback(request, error)` called after each background inference; `error` is None on success.

        It runs on the network's callback executor when the request is idle again: it may read results, set tensors and
        start the request, but not wait for it. An exception that it raises reaches one waiter, as `CallbackError`; if
        no thread has waited by the time that the request begins its next inference, is freed, or the interpreter exits,
        the logger `engine.runtime` logs it. Raises `Busy`, and `InferError` if `callback` is not callable.
        """
        require_callable(callback)
        with self._lock:
            self._require_idle("set_callback")
            self._callback = callback

    # -- state --------------------------------------------------------------------------------------------

    @property
    def state(self) -> RequestState:
        """Idle, busy, or cancelled and about to be idle."""
        run = self._run
        if run is None or run.ended:
            return RequestState.IDLE
        return RequestState.BUSY if run.cancellation is None else RequestState.CANCELLED

    @property
    def request_id(self) -> int:
        """The number of this request among its network's requests."""
        return self._request.request_id

    @property
    def starts(self) -> int:
        """How many inferences were started in the background so far."""
        return self._starts

    @property
    def network(self) -> Any:
        """The network that made this request and runs it."""
        return self._network

    @property
    def error(self) -> EngineError | None:
        """The error with which the last inference ended; None if it succeeded or there was none."""
        with self._lock:
            self._require_idle("error")
            return self._run.error if self._run is not None else None

    @property
    def results(self) -> InferResult:
        """The outputs of the last inference. Raises its error if it failed; `Busy` while it runs."""
        with self._lock:
            self._require_idle("results")
            run = self._run
        if run is None:
            raise InferError(f"{self._name} has no results; call infer, or start_async and wait")
        try:
            return run.outcome()
        finally:
            del self, run  # see `infer`

    @property
    def profiling_info(self) -> ProfilingInfo:
        """The profile of the last inference; empty unless compiled with PERF_COUNT. Raises `Busy`."""
        with self._lock:
            self._require_idle("profiling_info")
            return self._request.profiling_info

    # -- tensors ------------------------------------------------------------------------------------------

    def set_input_tensor(self, key: str | int, value: Value) -> None:
        """Bind one input by name or index; arrays, DLPack tensors in host memory and remote tensors are used in place.

        When an inference starts, it copies strided and unaligned arrays and the members of sequences; anything else
        is read while the inference runs. Raises `Busy`, and `InputError` if the value does not fit, which leaves the
        previous tensor bound. The first inference with a value for an initializer compiles the model again, once for
        all that were set (`ExecutableNetwork.overridable`), and raises the errors of that.
        """
        with self._lock:
            self._require_idle("set_input_tensor")
            if self._has_default(key):
                self._admitted(key, value)
                self._pending[key] = value
            else:
                self._request.set_input_tensor(key, value)

    def set_output_tensor(self, key: str | int, array: Array | RemoteTensor | None) -> None:
        """Have inferences write an output into `array`; None undoes that. Raises `InputError`, `Busy`.

        With a remote tensor, the output stays on the device, and is that tensor in the results.
        """
        with self._lock:
            self._require_idle("set_output_tensor")
            self._request.set_output_tensor(key, array)

    def get_input_tensor(self, key: str | int) -> Value:
        """Return the value bound to an input. Raises `InputError` if there is none; `Busy`."""
        with self._lock:
            self._require_idle("get_input_tensor")
            if self._has_default(key):
                return self._admitted(key, self._pending[key]) if key in self._pending else self._overrides.default(key)
            return self._request.get_input_tensor(key)

    def get_output_tensor(self, key: str | int) -> Value:
        """Return an output of the last inference, or the array set for it. Raises `InferError`, `Busy`."""
        with self._lock:
            self._require_idle("get_output_tensor")
            return self._request.get_output_tensor(key)

    def clear_tensors(self) -> None:
        """Release all tensors, including the results of the last inference. Raises `Busy`."""
        with self._lock:
            self._require_idle("clear_tensors")
            self._request.clear_tensors()
            self._pending.clear()
            former, self._run = self._run, None
        del former  # outside the lock, since it may log

    def reset_initializers(self) -> None:
        """Reset the initializers that were given other values (`ExecutableNetwork.overridable`) to the model's values.

        Raises `Busy`.
        """
        with self._lock:
            self._require_idle("reset_initializers")
            if self._overrides is not None:
                self._request.reset_inputs(self._overrides.ports)
                self._pending.clear()

    def set_tensor(self, name: str, value: Value) -> None:
        """Bind the input or output called `name`. Raises `InputError`, `Busy`."""
        if self._is_input(name):
            self.set_input_tensor(name, value)
        else:
            self.set_output_tensor(name, value)

    def get_tensor(self, name: str) -> Value:
        """Return the tensor of the input or output called `name`. Raises `InferError`, `Busy`."""
        return self.get_input_tensor(name) if self._is_input(name) else self.get_output_tensor(name)

    # -- variables ----------------------------------------------------------------------------------------

    def query_state(self) -> dict[str, VariableState]:
        """The variables of the model, by name: their values, which this request keeps between inferences.

        Empty for a model without variables.
        """
        return {port.name: VariableState(port, self._states) for port in self._request.signature.states}

    def reset_state(self) -> None:
        """Give all variables their initial values. Raises `Busy`."""
        self._states().reset()

    @property
    def length(self) -> int:
        """The length of the variables that grow, such as the number of past tokens; 0 if there are none.

        Raises `Busy`, and `StateError` if the variables have different lengths.
        """
        return self._states().length

    def rewind(self, count: int) -> None:
        """Remove the last `count` positions of all variables.

        Variables that do not grow need a checkpoint at the new length (`keep_checkpoints`). Raises `Busy`, and
        `StateError` if there is none or a variable is shorter, which leaves all values unchanged.
        """
        self._states().rewind(count)

    def keep_checkpoints(self, count: int) -> None:
        """Keep the values that the last `count` inferences replaced, from now on, for `rewind` and `undo`.

        These are the variables that do not grow, such as the states of linear attention, or the last keys of a window.
        Values are kept, not copied: a checkpoint costs their memory (`checkpoint_bytes`), and no time. Setting,
        resetting or loading variables drops the checkpoints; a fork has them, a saved state does not. Raises `Busy`,
        and `StateError` for a negative number.
        """
        self._states().keep_checkpoints(count)

    @property
    def checkpoints(self) -> list[int]:
        """The length of the variables that grow before each of the inferences whose values are kept. Raises `Busy`."""
        return self._states().checkpoint_lengths

    @property
    def checkpoint_bytes(self) -> int:
        """The bytes of the values that checkpoints hold, which forks share. Raises `Busy`."""
        return self._states().checkpoint_bytes

    def undo(self, count: int) -> None:
        """Return to the values before the last `count` inferences.

        A variable of a fixed length into which the model writes keeps what was written. Raises `Busy`, and `StateError`
        if fewer checkpoints are kept, which leaves all values unchanged.
        """
        self._states().undo(count)

    def adopt(self, other: AsyncInferRequest) -> None:
        """Take the values and the checkpoints of another request of the same network, as a fork of it has them.

        They are shared until they change. Raises `Busy`, and `StateError` if `other` belongs to another network, which
        leaves the values unchanged.
        """
        states = self._states()
        if not self._is_alike(other):
            raise StateError(f"{self._name}: values are taken from a request of the same network; got {other!r:.80}")
        if other is not self:
            states.adopt(other._states())

    def reorder(self, indices: Sequence[int] | Array) -> None:
        """Continue sequence i from the values of sequence `indices[i]`, as beam search does; indices may repeat.

        Raises `Busy`, and `StateError` for an index that does not exist, which leaves all values unchanged.
        """
        self._states().reorder(indices)

    def move_positions(self, columns: Array) -> None:
        """Let position p of sequence i have the keys and values of its position `columns[i, p]`.

        `columns`: [sequences, positions], of the positions along the dimension in which variables grow or are written:
        the last ones of those that grow, the first ones of those of a fixed length. Raises `Busy`, and `StateError` if
        a variable has no such dimension or other lengths, which leaves all values unchanged.
        """
        self._states().move_positions(columns)

    def take_sequence(self, index: int, other: AsyncInferRequest) -> None:
        """Replace sequence `index` of this request's batch by the only sequence of `other`, which joins the batch in
        this way.

        Variables that grow get it at their end, and zeros before it, which the model must mask. It is copied; the other
        sequences stay where they are. Raises `Busy`, and `StateError` if `other` belongs to another network, has
        several sequences or is longer, which leaves all values unchanged.
        """
        states = self._states()
        if other is self or not self._is_alike(other):
            raise StateError(
                f"{self._name}: a sequence is taken from another request of the same network; got {other!r:.80}"
            )
        states.take_sequence(index, other._states())

    def gather(self, sources: Sequence[tuple[AsyncInferRequest, int, int]], *, has_room: bool = True) -> None:
        """Make this request's batch of sequences of requests, of which it may be one.

        Sequence i becomes sequence `index` of `request`, for the triple (request, index, count) at i, of which the last
        `count` positions are kept. Variables that grow are as long as the longest sequence; shorter ones have zeros
        before them, which the model must mask. All values are copied. Without `has_room`, they take no memory for
        further positions, so that the next inference copies them again. Raises `Busy`, `OutOfMemoryError`, and
        `StateError` if a request belongs to another network or has no such sequence; all leave the values unchanged.
        """
        own, states = self._states(), []
        if not isinstance(sources, (list, tuple)) or not all(self._is_source(each) for each in sources):
            raise StateError(
                f"{self._name}: sequences are gathered from requests of the same network, by triples (request, index, "
                f"count); got {sources!r:.80}"
            )
        for request, index, count in sources:
            states.append((own if request is self else request._states(), index, count))
        own.gather(states, has_room=has_room)

    def rewind_each(self, counts: Sequence[int]) -> None:
        """Remove the last `counts[i]` positions of sequence i of the batch, as of proposed tokens that were refused.

        The variables become shorter by the least of the counts. Sequences that lose more are moved to the end of their
        rows, which copies them; the zeros before them must be masked. Raises `Busy`, `OutOfMemoryError`, and
        `StateError` if a variable does not grow or has another number of sequences, or a sequence is shorter; all leave
        the values unchanged.
        """
        self._states().rewind_each(counts)

    def fork(self) -> AsyncInferRequest:
        """A new request of the same network whose variables have the same values; they are copied when they change.

        Tensors are not passed on. Raises `Busy`.
        """
        states = self._states()
        made: AsyncInferRequest = self._network_with_states().create_infer_request()
        made._states().adopt(states)
        return made

    def save(self, target: str | os.PathLike[str] | BinaryIO) -> None:
        """Write the values of all variables to a path, atomically, or to a binary stream.

        Raises `Busy`, and `BlobError` if writing fails.
        """
        from engine.runtime.state_file import write_state

        write_state(target, self._network_with_states().model_identity, self._states().values())

    def load(self, source: str | os.PathLike[str] | bytes | BinaryIO) -> None:
        """Set all variables to what `save` wrote, in this process or another, on this device or another.

        A path is mapped until the next inference: if another process truncates the file before, this process is killed.
        `save` replaces files, and truncates none.

        Raises `Busy`, `BlobError` if the file is damaged, and `StateError` if it is the state of another model; all
        leave the values unchanged.
        """
        from engine.runtime.state_file import read_state

        states = self._states()
        values = read_state(source, self._network_with_states().model_identity, self._name)
        states.replace(values)

    def _states(self) -> States:
        """The values of the variables. Raises `Busy`."""
        with self._lock:
            self._require_idle("variables")
            return self._request.states or States((), self._request.signature.network)

    def _is_source(self, given: object) -> bool:
        """Whether this is one of the triples of `gather`, of whatever index and count."""
        return isinstance(given, (list, tuple)) and len(given) == 3 and self._is_alike(given[0])

    def _is_alike(self, other: object) -> bool:
        """Whether this is a request of the same network, which must have variables."""
        return self._network_with_states() is getattr(other, "_network", None)

    def _network_with_states(self) -> Any:
        if not self._request.signature.states:
            raise StateError(f"{self._name}: the model has no variables; see engine.passes.MakeStateful")
        return self._network

    def _is_input(self, name: str) -> bool:
        signature = self._request.signature
        is_input = name in signature.input_index or self._has_default(name)
        is_output = name in signature.output_index
        if is_input != is_output and isinstance(name, str):
            return is_input
        if not isinstance(name, str) or is_input:
            reason = "names an input and an output" if isinstance(name, str) else "is not a name"
            raise InputError(f"{self._name}: {name!r} {reason}; use set_/get_input_tensor or _output_tensor")
        listed = ", ".join(port.name for port in (*signature.inputs, *signature.outputs))
        raise InputError(f"{self._name}: no tensor is called {name!r}; tensors: {listed}")

    def _has_default(self, key: object) -> TypeGuard[str]:
        """Whether this is an initializer that is not an input of the request yet."""
        return (
            self._overrides is not None
            and isinstance(key, str)
            and key in self._overrides.ports
            and key not in self._request.signature.input_index
        )

    def _overridden(self, inputs: object) -> object:
        """`inputs` for the request; initializers that they name become inputs (`HostedNetwork.overridable`)."""
        known = self._request.signature.input_index
        wanted = {*self._pending, *self._overrides.given(inputs)}
        if not wanted and self._request.signature is self._network.signature:
            return inputs
        inputs = self._by_own_inputs(inputs)
        if wanted - known.keys():
            self._continue_on(self._overrides.network(wanted.union(known.keys() & self._overrides.ports.keys())))
        if self._pending:
            self._request.set_inputs(self._pending)
            self._pending = {}
        return inputs

    def _by_own_inputs(self, inputs: object) -> object:
        """`inputs` for a request with further inputs, which have names only; they keep their values."""
        signature = self._network.signature
        if inputs is None:
            return None
        if isinstance(inputs, Mapping):
            for key in inputs:
                if key not in self._overrides.ports:
                    signature.find_input(key)  # raises, as it does before any initializer is given
            return inputs
        values = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        if len(values) != len(signature.inputs):
            signature.bind((), inputs)  # raises
        return dict(enumerate(values))

    def _admitted(self, name: str, value: Value) -> Value:
        """`value` as an inference reads it, for an initializer that is not an input of the request yet."""
        check = PortCheck(self._overrides.ports[name], f"{self._request.signature.network}: input `{name}`")
        check.context = self._network.context
        return check.admit(value)

    def _continue_on(self, network: Any) -> None:
        """Let a request of another network do the work, in which further initializers are inputs."""
        request = network.create_sync_request()
        request.take_over(self._request, self._overrides.defaults(network))
        self._steps = _grouped(request, network.pipeline(request))
        self._request = request

    # -- one run, step by step ----------------------------------------------------------------------------

    def _interrupted(self, error: BaseException) -> InferError:
        return InferError(f"{self._name} was interrupted by {type(error).__name__}")

    def _submit(self, run: Run) -> None:
        try:
            self._steps[run.step][0].submit(partial(self._advance, run))
        except Exception as e:
            self._fail(run, e, None)
        finally:
            del self, run  # see `infer`

    def _advance(self, run: Run) -> None:
        """Run one step's stages and submit the next step. Called by an executor."""
        with self._lock:
            if run.ended:
                return
            run.has_begun, run.thread = True, threading.get_ident()
        stage: Stage | None = None
        try:
            executor, stages = self._steps[run.step]
            for stage in stages:
                self._request.check_cancelled()
                self._request.run_stage(stage, executor.name)
            stage, run.thread = None, None
            if run.step + 1 < len(self._steps):
                run.step += 1
                self._submit(run)
                return
            self._request.check_cancelled()
            run.result = self._request.finish()
            self._end(run, None)
        except BaseException as e:
            self._fail(run, e, stage)
        finally:
            del self, run  # see `infer`

    def _fail(self, run: Run, error: BaseException, stage: Stage | None) -> None:
        """End a run that failed in `stage`, or in the runtime if `stage` is None."""
        if run.has_begun:
            self._request.abort(error)
        if isinstance(error, EngineError):
            self._end(run, error)
            return
        if stage is not None:
            wrapped: EngineError = self._request.device_error(stage, error)
        else:
            wrapped = InferError(f"{self._name} cannot continue: {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        self._end(run, wrapped)

    def _end(self, run: Run, error: EngineError | None) -> None:
        with self._lock:
            if run.ended:
                return
            self._mark_ended(run, error)
            waiters = self._mark_done(run) if run.callback is None else None
        if waiters is None:
            self._notify(run)
        elif waiters:
            wake_all(waiters)

    def _mark_ended(self, run: Run, error: EngineError | None) -> None:
        """Make the request idle. Called with the lock held."""
        run.error = error or run.cancellation
        if run.error is not None:
            run.result = None
            run.traceback = run.error.__traceback__
            self._request.forget_outputs()
        if run.deadline is not None:
            run.deadline.cancel()
        run.ended = True  # last, so that an interrupted call can be repeated

    def _notify(self, run: Run) -> None:
        """Call the callback, then wake the waiters."""
        if run.callback is None:
            self._release(run)
            return
        try:
            self._callback_executor.submit(partial(self._call_back, run))
        except Exception as e:
            self._callback_failed(run, e)
            self._release(run)

    def _call_back(self, run: Run) -> None:
        callback, run.callback = run.callback, None
        run.thread = threading.get_ident()
        try:
            assert callback is not None
            callback(self, run.error)
        except BaseException as e:
            self._callback_failed(run, e)
        finally:
            self._release(run)
            del self, run  # see `infer`

    def _callback_failed(self, run: Run, error: BaseException) -> None:
        if error is run.error:
            return  # the callback raised the inference's own error
        run.callback_failure = CallbackFailure(f"{self._name}: the callback", error)

    def _release(self, run: Run) -> None:
        with self._lock:
            run.callback = None
            waiters = self._mark_done(run)
        wake_all(waiters)

    def _mark_done(self, run: Run) -> list[asyncio.Future[None]]:
        """Wake waiting threads; return the futures of waiting event loops. Called with the lock held."""
        run.thread = None
        run.is_done = True
        while run.gates:
            run.gates.pop().release()
        waiters, run.waiters = run.waiters, []
        return waiters

    # -- cancelling ---------------------------------------------------------------------------------------

    def _cancelled(self) -> Cancelled:
        return Cancelled(f"{self._name} was cancelled")

    def _cancel(self, run: Run, error: EngineError) -> None:
        with self._lock:
            if run.ended or run.cancellation is not None:
                return
            run.cancellation = error
            if run.has_begun:
                self._request.request_cancel(error)
                return
            self._mark_ended(run, error)
        self._notify(run)

    # -- checks -------------------------------------------------------------------------------------------

    def _require_idle(self, what: str) -> None:
        run = self._run
        if run is not None and not run.ended:
            raise Busy(f"{self._name} is running; wait for it, or cancel it and wait, before {what}")

    def _started(self) -> Run:
        if self._run is None:
            raise InferError(f"{self._name} was never started; call start_async first")
        return self._run

    def _require_may_wait(self, run: Run) -> None:
        needed = [executor for executor, _ in self._steps[run.step :]] if not run.ended else []
        if run.callback is not None:
            needed.append(self._callback_executor)
        if run.thread == threading.get_ident() or any(e.owns_current_thread() for e in needed):
            thread = threading.current_thread().name
            raise InferError(
                f"{self._name}: waiting on thread {thread}, which the inference itself needs, would deadlock; "
                f"wait on another thread (in a callback the results are already available)"
            )

    def _take_error(self, run: Run) -> EngineError | None:
        """Return the run's error, or otherwise the callback's; the callback's is returned only once."""
        with self._lock:
            failure, run.callback_failure = run.callback_failure, None
        callback_error = None if failure is None else failure.take()
        if run.error is None:
            return callback_error
        if callback_error is not None:
            run.error.add_note(str(callback_error))
        return run.error.with_traceback(run.traceback)

    # -- fork and exit ------------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        run = self._run
        if run is None or run.thread == threading.get_ident() or run.is_done:
            return
        run.waiters, run.gates, run.callback = [], [], None
        if not run.ended:
            error = InferError(f"{self._name} ran in the parent process when this one was forked; start it again")
            self._mark_ended(run, error)
        run.is_done = True

    def _begin_exit(self) -> None:
        with self._lock:  # a thread that starts an inference has either done so, or will be refused
            run = self._run
        if run is not None:
            self._cancel(run, Cancelled(f"{self._name} was cancelled: the interpreter exits"))

    def _is_busy(self) -> bool:
        run = self._run
        return run is not None and not run.ended

    def _end_exit(self, timeout: float) -> None:
        if self._run is not None and self._run.callback_failure is not None:
            self._run.callback_failure.report()


Callback: TypeAlias = Callable[[AsyncInferRequest, EngineError | None], object]


def wake_all(waiters: Sequence[asyncio.Future[None]]) -> None:
    """Let coroutines of any event loops continue; nothing waits in a closed loop."""
    for future in waiters:
        try:
            future.get_loop().call_soon_threadsafe(wake, future)
        except RuntimeError:
            continue


def _grouped(request: SyncInferRequest, pipeline: Pipeline) -> list[tuple[Executor, list[Stage]]]:
    return [
        (executor, [stage for _, stage in group])
        for executor, group in itertools.groupby(_checked(request, pipeline), key=lambda pair: pair[0])
    ]


def _checked(request: SyncInferRequest, pipeline: Pipeline) -> Pipeline:
    """Return `pipeline` if it runs the same stages as `request.infer`. Raises `PluginContractError`."""
    where = f"{request.signature.network}: the pipeline"
    if not isinstance(pipeline, Sequence) or not pipeline:
        raise PluginContractError(f"{where} must be a non-empty list of (executor, stage); got {pipeline!r:.80}")
    order = [request.infer_preprocess, request.start_pipeline, request.wait_pipeline, request.infer_postprocess]
    last = -1
    for position, pair in enumerate(pipeline):
        match pair:
            case (Executor(), stage) if callable(stage):
                pass
            case _:
                raise PluginContractError(
                    f"{where}'s entry {position} is {pair!r:.120}; expected (executor, stage): an Executor, such as a "
                    "ThreadExecutor, and a method of the request, not called"
                )
        owner = getattr(stage, "__self__", request)
        if isinstance(owner, SyncInferRequest) and owner is not request:
            raise PluginContractError(f"{where}'s entry {position} is a stage of another request than the one given")
        if stage in order:
            if order.index(stage) <= last:
                names = ", ".join(each.__name__ for each in order)
                raise PluginContractError(
                    f"{where} runs {stage.__name__} after {order[last].__name__}; the stages' order, each at most "
                    f"once, is {names}"
                )
            last = order.index(stage)
    used = [stage for _, stage in pipeline]
    left_out = [each.__name__ for each in order if each not in used and _is_defined(each)]
    if left_out and all(stage in order for stage in used):
        raise PluginContractError(
            f"{where} omits {', '.join(left_out)}, which {type(request).__name__} defines; add it at its position"
        )
    return pipeline


def _is_defined(stage: Callable[[], object]) -> bool:
    """Whether the device overrides the stage, so that a pipeline must not omit it."""
    name = stage.__name__
    return getattr(type(getattr(stage, "__self__", None)), name, None) is not getattr(SyncInferRequest, name)
