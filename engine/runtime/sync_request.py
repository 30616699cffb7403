"""`SyncInferRequest`, the base class of a device's requests: one inference as stages that run in order."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from engine.errors import DeviceError, EngineError, InferError, InputError, PluginContractError
from engine.ir import OptionalType, ValueType
from engine.runtime.records import SUBGRAPH, NodeProfile, StageProfile, TransferProfile
from engine.runtime.remote import RemoteContext, RemoteTensor
from engine.runtime.result import InferResult, ProfilingInfo
from engine.runtime.signature import Signature, overlaps
from engine.runtime.states import States
from engine.runtime.values import Array, PortCheck, Value

if TYPE_CHECKING:
    from engine.runtime.foreign_call import ForeignCall

Stage: TypeAlias = Callable[[], object]

_MISSING: Final[Any] = object()
STAGES: Final = ("infer_preprocess", "start_pipeline", "wait_pipeline", "infer_postprocess")
"""The stages, in the order in which they run."""


def _nothing() -> None:
    """The step after the stages of a request that `run_through` uses: none."""


class RequestOwner(Protocol):
    """The part of a network that its requests use."""

    @property
    def signature(self) -> Signature:
        """The inputs and outputs, with their names and types."""

    @property
    def is_profiling(self) -> bool:
        """Whether the property PERF_COUNT is set."""

    @property
    def context(self) -> RemoteContext | None:
        """The context that the network was compiled for."""

    def next_request_id(self) -> int:
        """Return a number that no other request of the network has."""


class SyncInferRequest(ABC):
    """One inference at a time over one set of tensors; not thread-safe.

    A device implements the stages, which run in this order and only after the inputs were checked: `infer_preprocess`,
    `start_pipeline`, `wait_pipeline`, `infer_postprocess`.

    Stages read `self.inputs`, a list in input order of C-contiguous numpy arrays (or lists, None), which they
    must not write to; they set every output once, through `output_buffer` or `store_output`; and they call
    `check_cancelled` between pieces of work. If the network was compiled for `self.context`, inputs may be tensors of
    that context, and outputs may have to be written to such (`remote_output`). The variables of a model are its last
    inputs and outputs: the base class passes their values on from one inference to the next. Keep references to parts
    of the network (its compiled plan), not to the network itself: the cycle would keep its memory until a garbage
    collection.
    """

    def __init__(self, network: RequestOwner) -> None:
        self.signature = network.signature
        self.request_id = network.next_request_id()
        self.is_profiling = network.is_profiling
        self.context = network.context
        # Calling the base class's empty stages would take a tenth of a small network's time.
        self._own_stages = [name for name in STAGES if getattr(type(self), name) is not getattr(SyncInferRequest, name)]
        self._no_inputs = [_absent(port.type) for port in self.signature.inputs]
        self.inputs: list[Value] = self._no_inputs
        self.states = States(self.signature.states, self.signature.network) if self.signature.states else None
        self.is_bound_again = False
        """Whether `bind_again` has bound the inputs of this inference."""
        self._copied_inputs: dict[int, Value] = {}  # the users' values that `inputs` has copies of
        self._outputs: list[Value] = []
        self._user_outputs: dict[int, Array | RemoteTensor] = {}
        self._in_place: set[int] = set()
        self._no_outputs = [_MISSING] * (len(self.signature.outputs) + len(self.signature.states))
        self._cancellation: EngineError | None = None
        self._stage_profiles: list[StageProfile] = []
        self._node_profiles: list[NodeProfile] = []
        self._transfer_profiles: list[TransferProfile] = []
        self._begun_ns = 0
        self._through: SyncInferRequest | None = None  # what computes this inference, see `run_through`
        self._call: ForeignCall | None = None  # what stops the work of a stage, see `stopping`

    # -- what a device implements -------------------------------------------------------------------------

    def infer_preprocess(self) -> None:  # noqa: B027
        """Optional. Prepare the inputs on the host."""

    @abstractmethod
    def start_pipeline(self) -> None:
        """Required. Compute, or hand the work to the device and return."""

    def wait_pipeline(self) -> None:  # noqa: B027
        """Optional. Wait until the device is done."""

    def infer_postprocess(self) -> None:  # noqa: B027
        """Optional. Bring the results to the host."""

    def abort_pipeline(self) -> None:  # noqa: B027
        """Optional. Release the device after an inference failed or was cancelled, so that the next one can begin."""

    def request_cancel(self, error: EngineError) -> None:
        """Optional, must call `super()`. Make the next `check_cancelled` raise `error`; stop the work on the device.

        Called by any thread, even while no inference runs.
        """
        self._cancellation = error
        through = self._through
        if through is not None:
            through.request_cancel(error)
        call = self._call
        if call is not None:
            call.stop()

    def bind_again(self, inputs: object) -> list[Value] | None:
        """Optional. Return the values of all inputs if they have the types and shapes of an earlier inference.

        For devices that can check this faster than the engine, which checks everything if None is returned. `inputs` is
        as for `infer`; those not given are in `self.inputs`. No array may need a copy. Must not change anything.
        """
        return None

    def clear_tensors(self) -> None:
        """Optional, must call `super()`. Release all tensors and other memory."""
        self.inputs = self._no_inputs
        self._copied_inputs = {}
        self._outputs = []
        self._user_outputs.clear()
        self._in_place.clear()

    # -- what stages call ---------------------------------------------------------------------------------

    def output_buffer(self, index: int, shape: tuple[int, ...]) -> Array:
        """Return the uninitialised C-contiguous array of `shape` to write output `index` into.

        It is the user's array if one was set, is C-contiguous and aligned, and does not overlap the inputs.
        """
        check = self._result_check(index)
        target = self._user_outputs.get(index) if self._user_outputs else None
        if isinstance(target, np.ndarray) and index in self._in_place and target.shape == shape:
            buffer = target
        else:
            if target is not None:
                self._check_user_shape(index, shape)
            buffer = np.empty(shape, check.dtype or self.signature.outputs[index].element_type.numpy)
        self._outputs[index] = buffer if check.has_admitted(shape) else check.admit(buffer)
        return buffer

    def remote_output(self, index: int, shape: tuple[int, ...]) -> RemoteTensor | None:
        """Return the remote tensor that output `index` of `shape` must be written to, and set it as the output.

        None if the user has set none: then set the output as a value on the host. If not `can_write_early(index)`, it
        shares memory with an input: write it when the inputs have been read. A value that is already on the host, such
        as a constant, is brought there by `store_output` instead.
        """
        target = self._user_outputs.get(index) if self._user_outputs else None
        if not isinstance(target, RemoteTensor):
            return None
        self._check_user_shape(index, shape)
        self._outputs[index] = target
        return target

    def can_write_early(self, index: int) -> bool:
        """Whether the tensor set for output `index` can be written while inputs are still read."""
        return index in self._in_place

    def store_output(self, index: int, value: Value, *, copy: bool = True) -> None:
        """Set the value of output `index`.

        Pass `copy=False` only for a new array that nothing else refers to: never an input, a view of one, a constant,
        or memory that the next inference reuses. An input that is a remote tensor can also be passed on. Raises
        `PluginContractError` if the value does not fit.
        """
        target = self._user_outputs.get(index) if self._user_outputs else None
        if isinstance(value, RemoteTensor):
            if isinstance(target, RemoteTensor):
                self._check_user_shape(index, value.shape)
                target.copy_from(value)
                self._outputs[index] = target
                return
            value, copy = value.to_host(), False
        value = self._result_check(index).admit(value)
        if target is not None:
            self._check_user_shape(index, value.shape)
            if isinstance(target, RemoteTensor):
                target.copy_from(value)
                value, copy = target, False
            elif index in self._in_place:
                np.copyto(target, value)
                value, copy = target, False
        self._outputs[index] = _copied(value) if copy else value

    def store_outputs(self, values: list[Value], *, are_known: bool = False) -> None:
        """Set all outputs at once, in order, as `store_output` with `copy=False` does; the request keeps the list.

        Only while no output tensors are set. With `are_known` they are not checked: outputs of the same types and
        shapes were stored before. Raises `PluginContractError`.
        """
        checks = self.signature.result_checks
        if not are_known:
            if len(values) != len(checks):
                raise PluginContractError(
                    f"{self.signature.network}: a stage set {len(values)} outputs at once; expected {len(checks)}"
                )
            values = [check.admit(value) for check, value in zip(checks, values, strict=True)]
        self._outputs = values

    @property
    def has_output_tensors(self) -> bool:
        """Whether the user has set an array for any output."""
        return bool(self._user_outputs)

    def check_cancelled(self) -> None:
        """Raise `Cancelled` or `DeadlineExceeded` if this inference should stop. Cheap; call it often."""
        if self._cancellation is not None:
            raise self._cancellation

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """A block in which a stage calls a runtime that cannot call `check_cancelled`; `stop` ends its call.

            with self.stopping(lambda: setattr(options, "terminate", True)):
                results = session.run(names, feeds, options)

        If the inference is cancelled, or its deadline passes, `stop` is called by another thread: again and again until
        the block ends, since the first time may be before the runtime has begun, and never after that. It must be
        quick, have the runtime return or raise soon, and not wait for that. An exception of it is logged.

        Raises the cancellation, instead of what the block raises, if there is one: before the block begins, so that a
        cancelled inference calls nothing, and at its end.
        """
        from engine.runtime.foreign_call import ForeignCall  # few devices call other runtimes

        call = ForeignCall(stop)
        self._call = call
        try:
            self.check_cancelled()  # after the line above: a cancellation is seen here, or sees the call
            yield
        except Exception as e:
            if self._cancellation is not None and e is not self._cancellation:
                raise self._cancellation from e
            raise
        finally:
            self._call = None
            call.end()
        self.check_cancelled()

    @property
    def cancellation(self) -> EngineError | None:
        """The error with which this inference is about to stop; None if it is not cancelled."""
        return self._cancellation

    def record_node(
        self,
        name: str,
        op_type: str,
        status: str,
        start_ns: int,
        end_ns: int,
        *,
        kernel: str = "",
        live_bytes: int | None = None,
    ) -> None:
        """Record when a node ran (`time.perf_counter_ns`); call it only while `is_profiling`. See `NodeProfile`."""
        duration = end_ns - start_ns
        self._node_profiles.append(
            NodeProfile(name, op_type, status, start_ns, duration, kernel, live_bytes=live_bytes)
        )

    def record_subgraph(
        self, nodes: Sequence[str], start_ns: int, end_ns: int, *, status: str = "native", kernel: str = ""
    ) -> None:
        """Record when several nodes ran as one, so that nothing is known of each; call it only while `is_profiling`.

        `nodes` are their friendly names in the model, in the order of `Model.ordered_nodes`; no other record names one
        of them. See `NodeProfile`.
        """
        name = nodes[0] if len(nodes) == 1 else f"{nodes[0]} .. {nodes[-1]} ({len(nodes)} nodes)"
        duration = end_ns - start_ns
        self._node_profiles.append(NodeProfile(name, SUBGRAPH, status, start_ns, duration, kernel, nodes=tuple(nodes)))

    def record_nodes(self, profiles: Iterable[NodeProfile]) -> None:
        """Record many nodes at once; call it only while `is_profiling`."""
        self._node_profiles.extend(profiles)

    def record_transfer(
        self, name: str, source: str, target: str, byte_size: int | None, start_ns: int, end_ns: int
    ) -> None:
        """Record a copy between two memories; call it only while `is_profiling`. See `TransferProfile`."""
        self._transfer_profiles.append(TransferProfile(name, source, target, byte_size, start_ns, end_ns - start_ns))

    def record_transfers(self, profiles: Iterable[TransferProfile]) -> None:
        """Record many transfers at once; call it only while `is_profiling`."""
        self._transfer_profiles.extend(profiles)

    # -- tensors ------------------------------------------------------------------------------------------

    def set_inputs(self, inputs: object) -> None:
        """Bind several inputs, or none if any does not fit: a mapping, a list, or one array.

        Arrays are used in place: do not change them while an inference runs. Strided and unaligned arrays
        and the members of sequences are copied when an inference begins. Raises `InputError`.
        """
        bound, copied = self.signature.bind(self.inputs, inputs)
        if self._copied_inputs or copied:
            self._copied_inputs = self._still_copied(bound) | copied
        self.inputs = bound

    def take_over(self, other: SyncInferRequest, defaults: Mapping[str, Value]) -> None:
        """Continue with the tensors and the variables of `other`, a request of the same model with fewer inputs.

        `defaults` are the values of the further inputs, by name, until they are set, and after `clear_tensors`.
        """
        known = other.signature.input_index
        self._no_inputs = [
            self.signature.input_checks[position].admit(defaults[port.name]) if port.name in defaults else value
            for position, (port, value) in enumerate(zip(self.signature.inputs, self._no_inputs, strict=True))
        ]
        self.inputs = [
            other.inputs[known[port.name]] if port.name in known else value
            for port, value in zip(self.signature.inputs, self._no_inputs, strict=True)
        ]
        places = self.signature.input_index
        self._copied_inputs = {
            places[other.signature.inputs[position].name]: value for position, value in other._copied_inputs.items()
        }
        self._user_outputs = dict(other._user_outputs)
        self.states = other.states if self.states is not None else None

    def reset_inputs(self, names: Iterable[str]) -> None:
        """Reset the named inputs that this request has to the values that `clear_tensors` leaves."""
        positions = [self.signature.input_index[name] for name in names if name in self.signature.input_index]
        if positions:
            self.inputs = list(self.inputs)
            for position in positions:
                self.inputs[position] = self._no_inputs[position]
                self._copied_inputs.pop(position, None)

    def _still_copied(self, bound: list[Value]) -> dict[int, Value]:
        """The items of `_copied_inputs` that stay bound when the inputs become `bound`."""
        inputs = self.inputs
        return {position: v for position, v in self._copied_inputs.items() if bound[position] is inputs[position]}

    def set_input_tensor(self, key: str | int, value: Value) -> None:
        """Bind one input as `set_inputs` does. Raises `InputError` if it does not fit, and keeps the old one."""
        self.set_inputs({self.signature.find_input(key): value})

    def set_output_tensor(self, key: str | int, array: Array | RemoteTensor | None) -> None:
        """Have inferences write an output into `array`, also a remote one; None undoes that. Raises `InputError`."""
        index = self.signature.find_output(key)
        if array is None:
            self._user_outputs.pop(index, None)
            self._in_place.discard(index)
        else:
            self._user_outputs[index] = self.signature.output_checks[index].admit_output(array)

    def get_input_tensor(self, key: str | int) -> Value:
        """Return the value bound to an input. Raises `InputError` if there is none."""
        index = self.signature.find_input(key)
        value = self._copied_inputs.get(index, self.inputs[index])
        if value is _MISSING:
            raise InputError(f"{self.signature.network}: input {key!r} is not set")
        return value

    def get_output_tensor(self, key: str | int) -> Value:
        """Return an output of the last inference, or the array set for it. Raises `InferError`."""
        index = self.signature.find_output(key)
        if index < len(self._outputs) and self._outputs[index] is not _MISSING:
            return self._outputs[index]
        if index in self._user_outputs:
            return self._user_outputs[index]
        raise InferError(f"{self.signature.network}: output {key!r} has no value; no inference has finished")

    @property
    def profiling_info(self) -> ProfilingInfo:
        """The profile of the last inference; empty unless the network was compiled with PERF_COUNT."""
        return ProfilingInfo(
            self.request_id,
            tuple(self._stage_profiles),
            tuple(self._node_profiles),
            tuple(self._transfer_profiles),
            self._begun_ns,
        )

    # -- running ------------------------------------------------------------------------------------------

    def infer(self, inputs: object = None) -> InferResult:
        """Bind `inputs`, run all stages in this thread and return the outputs; reusable after any error.

        Raises `InputError` before any stage runs, the `EngineError`s of stages, and `DeviceError` from
        any other exception of theirs.
        """
        self.begin(inputs)
        return self.run_stages()

    def run_stages(self) -> InferResult:
        """Run all stages of a begun inference in this thread; raises as `infer` does."""
        result: InferResult = self._run_own_stages(self.finish)
        return result

    def _run_own_stages(self, finish: Callable[[], Any] = _nothing) -> Any:
        """Run all stages of a begun inference in this thread; returns the result of `finish`, which follows them."""
        stage: Stage = self.infer_preprocess
        is_profiling = self.is_profiling
        try:
            for name in STAGES if is_profiling else self._own_stages:
                stage = getattr(self, name)
                if self._cancellation is not None:
                    raise self._cancellation
                if is_profiling:
                    self.run_stage(stage, "inline")
                else:
                    stage()
            if self._cancellation is not None:
                raise self._cancellation
            return finish()
        except BaseException as e:
            self.abort(e)
            if isinstance(e, EngineError) or not isinstance(e, Exception):
                raise
            raise self.device_error(stage, e) from e

    def run_through(self, other: SyncInferRequest) -> None:
        """Compute this inference by a request of another network of the same model, in `start_pipeline`.

        For devices that run whole models on others. `other`, of `HostedNetwork.create_sync_request`, is used for
        nothing else. It reads this request's inputs and the values of its variables, and writes into its output
        tensors; its outputs, and the new values of the variables, become this request's. A cancellation reaches it.
        Afterwards it holds no tensors, and can be used again after any error. Raises the errors of its stages.
        """
        other.inputs, other.is_bound_again = self.inputs, False
        other._outputs = other._no_outputs.copy()
        other._user_outputs, other._in_place = self._user_outputs, self._in_place
        other._cancellation = None
        other._stage_profiles, other._node_profiles = [], []
        self._through = other
        try:
            self.check_cancelled()  # a cancellation that came before the line above
            other._run_own_stages()
            self._outputs = other._outputs
            if self.is_profiling:
                self.record_nodes(other._node_profiles)
        finally:
            self._through = None
            other.inputs, other._outputs, other._user_outputs, other._in_place = other._no_inputs, [], {}, set()

    def begin(self, inputs: object = None) -> None:
        """Bind `inputs`, check that none is missing, and discard the last inference's outputs and profile."""
        is_plain = not self._copied_inputs and not self._user_outputs and self.states is None and self.context is None
        bound = self.bind_again(inputs) if is_plain else None
        self.is_bound_again = bound is not None
        if bound is not None:
            self.inputs = bound
        else:
            self._bind_checked(inputs)
        self._outputs = self._no_outputs.copy()
        self._cancellation = None
        if self.is_profiling:
            self._begun_ns = time.perf_counter_ns()
            self._stage_profiles, self._node_profiles, self._transfer_profiles = [], [], []

    def _bind_checked(self, inputs: object) -> None:
        """Bind `inputs` with all checks, and find the output tensors that can be written in place."""
        stale = self._copied_inputs
        if inputs is not None:
            bound, copied = self.signature.bind(self.inputs, inputs)
            if stale or copied:
                stale = self._still_copied(bound)
                self._copied_inputs = stale | copied
            self.inputs = bound
        if stale:
            self._read_again(stale)
        for index, value in enumerate(self.inputs):
            if value is _MISSING:
                port = self.signature.inputs[index]
                raise InputError(f"{self.signature.network}: input `{port.name}` ({port.type}) is missing")
        if self.context is not None:
            for tensor in (*self.inputs, *self._user_outputs.values()):
                if isinstance(tensor, RemoteTensor):
                    tensor.context.require_open()
        if self.states is not None:
            given = self.inputs[: len(self.signature.inputs)]
            self.inputs = given + self.states.begin(self.signature.lengths(given))
        if self.signature.is_tied:
            self.signature.check_ties(self.inputs)
        if self._user_outputs:
            self._in_place = self._writable_in_place()

    def _read_again(self, copied: Mapping[int, Value]) -> None:
        """Copy the current values of the users' inputs, by position, for the stages."""
        inputs = list(self.inputs)
        for position, value in copied.items():
            inputs[position] = self.signature.input_checks[position].admit(value)
        self.inputs = inputs

    def run_stage(self, stage: Stage, executor: str) -> None:
        """Run one stage, and record it if profiling."""
        if not self.is_profiling:
            stage()
            return
        start = time.perf_counter_ns()
        try:
            stage()
        finally:
            name = getattr(stage, "__name__", type(stage).__name__)
            self._stage_profiles.append(StageProfile(name, executor, start, time.perf_counter_ns()))

    def finish(self) -> InferResult:
        """Return the outputs. Raises `PluginContractError` if no stage has set one of them."""
        outputs = self._outputs
        for value in outputs:
            if value is _MISSING:
                checks = self.signature.result_checks
                name = checks[next(i for i, each in enumerate(outputs) if each is _MISSING)].port.name
                raise PluginContractError(f"{self.signature.network}: no stage set output `{name}`")
        if self._user_outputs:
            for index, array in self._user_outputs.items():
                if outputs[index] is not array:
                    if isinstance(array, RemoteTensor):
                        array.copy_from(outputs[index])
                    else:
                        np.copyto(array, outputs[index])
                    outputs[index] = array
        if self.states is not None:
            count = len(self.signature.outputs)
            self.states.commit(outputs[count:])
            outputs = self._outputs = outputs[:count]
            self.inputs = self.inputs[: len(self.signature.inputs)]  # otherwise, the former values would stay in memory
        observer = self.signature.observer
        if observer is not None:
            observer(self.inputs, outputs, not self._user_outputs)
        return InferResult(self.signature.output_index, outputs)

    def abort(self, error: BaseException) -> None:
        """End a begun inference that failed with `error`: discard the outputs and release the device."""
        self.forget_outputs()
        self._cancellation = None
        try:
            self.abort_pipeline()
        except Exception as e:
            error.add_note(f"and abort_pipeline failed: {type(e).__name__}: {e}")

    def forget_outputs(self) -> None:
        """Discard the outputs of the last inference."""
        self._outputs = []

    def device_error(self, stage: Stage, error: BaseException) -> DeviceError:
        """Return the error that reports an unexpected exception of a stage to the user."""
        name = getattr(stage, "__name__", type(stage).__name__)
        request = f"{self.signature.network}: request {self.request_id}"
        return DeviceError(f"{request}: {name} failed: {type(error).__name__}: {error}")

    def _result_check(self, index: int) -> PortCheck:
        checks = self.signature.result_checks
        try:
            return checks[index]
        except (IndexError, TypeError):
            raise PluginContractError(
                f"{self.signature.network}: a stage set output {index!r}; expected an index in 0..{len(checks) - 1}"
            ) from None

    def _check_user_shape(self, index: int, shape: tuple[int, ...]) -> None:
        array = self._user_outputs.get(index)
        if array is not None and array.shape != shape:
            raise InputError(
                f"{self.signature.network}: output `{self.signature.outputs[index].name}` has shape {shape} for "
                f"these inputs, but the tensor set for it has {array.shape}"
            )

    def _writable_in_place(self) -> set[int]:
        in_place = set()
        arrays = list(self._user_outputs.items())
        for position, (index, array) in enumerate(arrays):
            for other, taken in arrays[:position]:
                if _share(array, taken):
                    names = f"`{self.signature.outputs[other].name}` and `{self.signature.outputs[index].name}`"
                    raise InputError(f"{self.signature.network}: the tensors set for {names} share memory")
            if isinstance(array, RemoteTensor):
                if not any(array.shares_memory(value) for value in self.inputs):
                    in_place.add(index)
                continue
            flags = array.flags
            if flags.c_contiguous and flags.aligned and not overlaps(array, self.inputs):
                in_place.add(index)
        return in_place


def _share(first: Array | RemoteTensor, second: Array | RemoteTensor) -> bool:
    if isinstance(first, RemoteTensor):
        return first.shares_memory(second)
    return second.shares_memory(first) if isinstance(second, RemoteTensor) else np.shares_memory(first, second)


def _absent(value_type: ValueType) -> Value:
    """The value of an input that is not set: None for an optional."""
    return None if isinstance(value_type, OptionalType) else _MISSING


def _copied(value: Value) -> Value:
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    if isinstance(value, list):
        return [_copied(element) for element in value]
    if isinstance(value, dict):
        return {key: _copied(element) for key, element in value.items()}
    return value
