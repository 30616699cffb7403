"""`AsyncInferQueue`: a bounded number of requests, kept busy."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from engine.errors import Busy, DeadlineExceeded, EngineError, InferError
from engine.runtime.async_request import AsyncInferRequest, wake_all
from engine.runtime.executors import Executor
from engine.runtime.lifecycle import Participant, lifecycle
from engine.runtime.run import CallbackFailure, require_callable, seconds
from engine.threads import Signal

if TYPE_CHECKING:
    import asyncio

JobCallback: TypeAlias = Callable[[AsyncInferRequest, Any], object]


class QueueNetwork(Protocol):
    """The methods of a network that a queue uses."""

    @property
    def callback_executor(self) -> Executor:
        """The executor that runs callbacks after an inference."""

    def create_infer_request(self) -> AsyncInferRequest:
        """Return a new request, which the queue owns."""

    def get_metric(self, name: str) -> Any:
        """The value of a metric of the network."""


class AsyncInferQueue(Participant):
    """Runs many inferences over a fixed number of requests. Thread-safe.

    What applications use first:

        results = {}
        with AsyncInferQueue(network, callback=lambda request, i: results.update({i: request.results})) as queue:
            for i, x in enumerate(arrays):
                queue.start_async({"x": x}, i)  # waits until a request is idle
            queue.wait_all()                    # raises the first error, as the end of the block does

    In coroutines: `async with AsyncInferQueue(network) as queue`, `await queue.start(...)`, `await queue.join()`.

    Args:
        network: creates the requests.
        jobs: the number of requests, which limits the inferences in flight; 0 uses OPTIMAL_NUMBER_OF_INFER_REQUESTS.
        policy: what `start_async` does if all are in flight: "block" until one is done, or "reject" with `Busy`.
        callback: see `set_callback`.
    """

    def __init__(
        self,
        network: QueueNetwork,
        jobs: int = 0,
        policy: Literal["block", "reject"] = "block",
        callback: JobCallback | None = None,
    ) -> None:
        if policy not in ("block", "reject"):
            raise InferError(f'the policy of a queue must be "block" or "reject"; got {policy!r}')
        if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 0:
            raise InferError(f"jobs must be 1 or more, or 0 for the device's choice; got {jobs!r}")
        if not callable(getattr(network, "create_infer_request", None)):
            raise InferError(f"a queue takes a compiled network; got {type(network).__name__}")
        require_callable(callback)
        count = jobs or network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        self._requests = [network.create_infer_request() for _ in range(count)]
        self._callback_executor = network.callback_executor
        self._policy = policy
        self._callback = callback
        self._userdata: dict[AsyncInferRequest, Any] = {}
        self._first_error: EngineError | CallbackFailure | None = None
        self._failures = 0
        self._idle = deque(self._requests)
        self._lock = threading.RLock()
        self._changed = Signal(self._lock)
        self._waiters: list[asyncio.Future[None]] = []
        """The event that coroutines wait for: the next change of the idle requests."""
        lifecycle.track(self)

    def set_callback(self, callback: JobCallback | None) -> None:
        """Have `callback(request, userdata)` called after each inference, even if it failed.

        In the callback, `request.results` returns the outputs or raises the inference's error. `wait_all` raises the
        first failure: such an error, or another exception of a callback as `CallbackError`; the logger `engine.runtime`
        logs later exceptions of callbacks. The callback may start its request again, which continues the same job; it
        must not wait, and must not set another callback of the request. Raises `Busy` while any inference is in flight,
        and `InferError` if `callback` is not callable.
        """
        require_callable(callback)
        with self._lock:
            if len(self._idle) < len(self._requests):
                raise Busy("the queue has inferences in flight; wait_all before set_callback")
            self._callback = callback

    def start_async(
        self,
        inputs: object = None,
        userdata: Any = None,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
    ) -> None:
        """Start an inference on the next idle request.

        If none is idle, the policy "block" waits, and raises `DeadlineExceeded` after `timeout` seconds; "reject"
        raises `Busy`, and so does a call in a callback, which would deadlock. `inputs` and `deadline` are as for a
        request, but initializers that `inputs` does not give have the values of the model, whatever ran before.
        """
        taken: list[tuple[AsyncInferRequest, int]] = []
        try:
            request = self._take_idle(timeout, taken)
            request.set_callback(self._finished)
            self._userdata[request] = userdata
            request.reset_initializers()  # which request is idle, and what it ran before, depends on timing
            request.start_async(inputs, deadline=deadline)
        except BaseException:
            for request, starts in taken:
                # An inference that has started and was interrupted then ends in the callback.
                if request.starts == starts and request not in self._idle:
                    self._put_idle(request)
            raise

    async def start(self, inputs: object = None, userdata: Any = None, *, deadline: float | None = None) -> None:
        """Like `start_async`, in a coroutine: waits for an idle request without blocking the event loop."""
        while not self._start_at_once(inputs, userdata, deadline):
            await self._change(lambda: bool(self._idle))

    def _start_at_once(self, inputs: object, userdata: Any, deadline: float | None) -> bool:
        """Start an inference if a request is idle, or raise `Busy` if the policy is "reject"."""
        if not self._idle and self._policy == "block":
            return False
        try:
            self.start_async(inputs, userdata, timeout=0, deadline=deadline)
        except DeadlineExceeded:  # another thread has taken the request
            return False
        return True

    async def join(self) -> None:
        """Like `wait_all`, in a coroutine: waits without blocking the event loop."""
        await self._change(lambda: len(self._idle) == len(self._requests))
        self.wait_all()

    async def _change(self, is_reached: Callable[[], bool]) -> None:
        """Wait in a coroutine until the number of idle requests is as wanted."""
        import asyncio  # 6 MB; a caller in a coroutine has loaded it already

        while True:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            with self._lock:
                if is_reached():
                    return
                self._waiters.append(future)
            try:
                await future
            finally:
                with self._lock:
                    if future in self._waiters:
                        self._waiters.remove(future)

    def wait_all(self, timeout: float | None = None) -> None:
        """Wait until nothing is in flight; then raise the first error since the last call, if any.

        The queue stays usable after any error. Raises `DeadlineExceeded` after `timeout` seconds.
        """
        self._require_may_wait("wait_all")
        time_limit = None if timeout is None else seconds(timeout, "timeout", zero=True)
        if not self._changed.wait_for(lambda: len(self._idle) == len(self._requests), time_limit):
            running = len(self._requests) - len(self._idle)
            raise DeadlineExceeded(f"{running} inferences of the queue still run after waiting {timeout} s")
        with self._lock:
            error, failures = self._first_error, self._failures
            self._first_error, self._failures = None, 0
        if isinstance(error, CallbackFailure):
            error = error.take()
        if error is not None:
            if failures > 1:
                error.add_note(f"and {failures - 1} more inferences of the queue failed")
            raise error

    def cancel(self) -> None:
        """Cancel everything in flight. Never blocks."""
        for request in self._requests:
            request.cancel()

    @property
    def is_ready(self) -> bool:
        """Whether a request is idle, so that `start_async` would not wait."""
        return bool(self._idle)

    def _take_idle(self, timeout: float | None, taken: list[tuple[AsyncInferRequest, int]]) -> AsyncInferRequest:
        """Take a request out of the idle ones; `taken` has it, with its starts, even if this is interrupted."""
        time_limit = None if timeout is None else seconds(timeout, "timeout", zero=True)
        with self._lock:
            if not self._idle and self._policy == "reject":
                raise Busy(f"all {len(self._requests)} requests of the queue are in flight; try again later")
            if not self._idle:
                self._require_may_wait("start_async")

        def take() -> AsyncInferRequest | None:
            if not self._idle:
                return None
            taken.append((self._idle[0], self._idle[0].starts))
            return self._idle.popleft()

        found = self._changed.wait_for(take, time_limit)
        if found is None:
            raise DeadlineExceeded(f"no request of the queue became idle within {timeout} s")
        return found

    def _require_may_wait(self, what: str) -> None:
        if self._callback_executor.owns_current_thread():
            raise Busy(f"{what} in a callback would wait for the callback itself; call it on another thread")

    def _finished(self, request: AsyncInferRequest, error: EngineError | None) -> None:
        starts = request.starts
        raised = self._call_back(request, error)
        failure = error or raised
        if failure is not None:
            with self._lock:
                self._first_error = self._first_error or failure
                self._failures += 1
            if raised is not None and self._first_error is not raised:
                raised.report()
        if request.starts == starts:
            self._put_idle(request)

    def _call_back(self, request: AsyncInferRequest, error: EngineError | None) -> CallbackFailure | None:
        """Call the callback and return its exception, unless that is the inference's own error."""
        try:
            if self._callback is not None:
                self._callback(request, self._userdata.get(request))
        except BaseException as e:
            return None if e is error else CallbackFailure("the queue's callback", e)
        finally:
            del self, request, error  # the raised error's traceback refers to this frame
        return None

    def _put_idle(self, request: AsyncInferRequest) -> None:
        # An idle request must not refer to the queue, so that dropping the queue frees both without the collector.
        request.set_callback(None)
        with self._lock:
            self._userdata.pop(request, None)
            self._idle.append(request)
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
        wake_all(waiters)

    def __repr__(self) -> str:
        busy = len(self._requests) - len(self._idle)
        return f"<AsyncInferQueue of {len(self._requests)} requests, {busy} in flight>"

    def __iter__(self) -> Iterator[AsyncInferRequest]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> AsyncInferRequest:
        return self._requests[index]

    def __enter__(self) -> AsyncInferQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.wait_all()
            return
        self.cancel()
        self._changed.wait_for(lambda: len(self._idle) == len(self._requests))

    async def __aenter__(self) -> AsyncInferQueue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.join()
            return
        self.cancel()
        await self._change(lambda: len(self._idle) == len(self._requests))

    def _end_exit(self, timeout: float) -> None:
        if isinstance(self._first_error, CallbackFailure):
            self._first_error.report()

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._changed = Signal(self._lock)
        self._waiters = []
        self._idle = deque(self._requests)
        self._userdata.clear()
