"""`Supervisor`: keeps a network in another process, which it starts again after a crash, until it gives up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from engine.errors import BlobCorruptError, DeviceError, EngineError, OutOfMemoryError, PluginError, UnsupportedError
from engine.limits import shown_bytes
from engine.plugin_api import Signature
from engine.runtime.lifecycle import ForkSafeLock, Participant, lifecycle
from engine.startup import dataclass
from engine_isolated.channel import Channel
from engine_isolated.log import logger
from engine_isolated.memory import SharedMemory
from engine_isolated.pool import pool
from engine_isolated.process import Additions, DeviceProcess, ProcessEnded

_FIRST_DELAY: Final = 0.2
_LONGEST_DELAY: Final = 5.0
_TICK: Final = 0.05


@dataclass(frozen=True, slots=True)
class Order:
    """What a process makes its network of, which is kept for the next process.

    Attributes:
        device: the device string in the process.
        additions: for the core of the process.
        call: "compile" or "import".
        shared: the model, or the blob.
        arguments: of the call.
    """

    device: str
    additions: Additions
    call: str
    shared: SharedMemory
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The properties of ISOLATED: seconds, numbers and bytes; 0 is no limit."""

    hang_timeout: float
    call_timeout: float
    max_crashes: int
    max_bytes: int


class Running:
    """A process with the network. `busy` counts the inferences that somebody waits for."""

    __slots__ = ("busy", "drained", "idle", "inferences", "is_retired", "process")

    def __init__(self, process: DeviceProcess) -> None:
        self.process = process
        self.idle: list[Channel] = []
        self.drained: list[tuple[Channel, float]] = []
        """Channels of cancelled inferences that have not ended, and when these count as hung."""
        self.busy = self.inferences = 0
        self.is_retired = False


class Supervisor(Participant):
    """The network of an order in a process, which is replaced when it crashes, hangs or holds too much. Thread-safe."""

    def __init__(self, where: str, order: Order, bounds: Bounds) -> None:
        self.where = where
        self.bounds = bounds
        self.counts = {"starts": 0, "crashes": 0, "hangs": 0, "replaced": 0}
        self._order = order
        self._running: Running | None = None
        self._failures = 0
        self._last_failure = ""
        self._not_before = 0.0
        self._signature: Signature | None = None
        self._lock = ForkSafeLock()
        self._starting = ForkSafeLock()
        lifecycle.track(self)

    def start(self, signature: Signature) -> Mapping[str, Any]:
        """Make the network; returns its facts. Raises the errors of the device, `DeviceError` if the process ends."""
        self._signature = signature
        with self._starting:
            return self._start()

    def _start(self) -> Mapping[str, Any]:
        order = self._order
        process = pool.take(order.device, order.additions)
        try:
            answer, _ = process.call(order.call, self.bounds.call_timeout, order.shared, order.arguments)
            self._check(answer)
        except ProcessEnded as e:
            process.end()
            raise DeviceError(f"{self.where}: {e}") from None
        except (PluginError, OutOfMemoryError):  # a plugin that failed once is not tried again there
            process.end()
            raise
        except EngineError:
            self._dismiss(process)
            raise
        except BaseException:
            process.end()
            raise
        with self._lock:
            self._running = Running(process)
            self.counts["starts"] += 1
        facts: Mapping[str, Any] = answer
        return facts

    def _check(self, facts: Mapping[str, Any]) -> None:
        """The tensors that requests pass on are not checked again, so the interface must be the same."""
        signature = self._signature
        assert signature is not None
        for what, ours in (
            ("inputs", signature.inputs), ("outputs", signature.outputs), ("variables", signature.states),
        ):  # fmt: skip
            if [each.to_json() for each in ours] != facts[what]:
                raise BlobCorruptError(f"{self.where}: the {what} do not match those of the network in the process")

    def _dismiss(self, process: DeviceProcess) -> None:
        """Have a process drop its network, and keep it for another one."""
        if process.is_running:
            process.signal({"drop": True})
            pool.give_back(process, self._order.additions)
        else:
            process.end()

    # -- inferences ---------------------------------------------------------------------------------------

    def channel(self, check: Callable[[], None]) -> tuple[Running, Channel]:
        """A channel for one inference; starts the process if none runs. `check` raises if the caller is to stop.

        Raises `DeviceError` if the process cannot be started, or has crashed too often.
        """
        while True:
            running = self._running or self._started_again(check)
            with self._lock:
                if running.is_retired or running is not self._running:
                    continue
                self._take_drained(running)
                is_hung = any(time.monotonic() > deadline for _, deadline in running.drained)
                running.busy += 1
                if running.idle and not is_hung:
                    return running, running.idle.pop()
            if is_hung:
                self.hung(
                    running, f"a cancelled inference did not end within {self.bounds.hang_timeout:g} s (HANG_TIMEOUT)"
                )
                continue
            try:
                assert self._signature is not None
                return running, running.process.open_channel(self._signature)
            except ProcessEnded as e:
                # It ended while no inference ran, so this one did nothing to it, and goes on in the next process.
                self.crashed(running, str(e))
            except BaseException:
                self._leave(running)
                raise

    def _take_drained(self, running: Running) -> None:
        for entry in running.drained.copy():
            channel, _ = entry
            try:
                if running.process.wait_readable(channel.connection.fileno(), 0.0):
                    channel.drop_result(lambda: None)
                    running.drained.remove(entry)
                    running.idle.append(channel)
            except (OSError, EOFError):
                running.drained.remove(entry)
                channel.close()

    def _started_again(self, check: Callable[[], None]) -> Running:
        while not self._starting.acquire(timeout=_TICK):
            check()
        try:
            if self._running is not None:
                return self._running
            lifecycle.refuse_at_exit(f"{self.where}: an inference")
            if self._failures >= self.bounds.max_crashes:
                raise DeviceError(
                    f"{self.where}: the process ended {self._failures} times in a row without an inference that "
                    f"succeeds, and is not started again (MAX_CRASHES); compile or import the network again. The last "
                    f"time: {self._last_failure}"
                )
            while time.monotonic() < self._not_before:
                check()
                time.sleep(_TICK)
            try:
                self._start()
            except EngineError as e:
                self._note_failure(str(e))
                raise
            running = self._running
            assert running is not None
            return running
        finally:
            self._starting.release()

    def _note_failure(self, why: str) -> None:
        with self._lock:
            self._failures += 1
            self._last_failure = why
            delay = 0.0 if self._failures < 2 else min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (self._failures - 2))
            self._not_before = time.monotonic() + delay

    def done(self, running: Running, channel: Channel) -> None:
        """Give back the channel of an inference that has ended, with a result or an error of its own."""
        bounds = self.bounds
        running.inferences += 1
        self._failures = 0
        if bounds.max_bytes and not running.is_retired and (held := running.process.own_bytes) > bounds.max_bytes:
            level = logger.warning if running.inferences == 1 else logger.info
            level(
                "%s: the process holds %s after %d inferences, more than MAX_PROCESS_BYTES, and is replaced",
                self.where, shown_bytes(held), running.inferences,
            )  # fmt: skip
            with self._lock:
                self.counts["replaced"] += not running.is_retired
                self._retire(running)
        with self._lock:
            running.idle.append(channel)
        self._leave(running)

    def abandoned(self, running: Running, channel: Channel) -> None:
        """Leave an inference that was cancelled and has not ended. The channel is used again once it has."""
        if not channel.is_running:  # only a part of it was sent
            self.broken(running, channel)
            return
        timeout = self.bounds.hang_timeout
        deadline = time.monotonic() + timeout if timeout else math.inf
        running.process.signal({"cancel": [channel.number, channel.run]})
        with suppress(OSError, EOFError):
            if running.process.wait_readable(channel.connection.fileno(), _TICK):
                channel.drop_result(lambda: None)
                with self._lock:
                    running.idle.append(channel)
                self._leave(running)
                return
        with self._lock:
            running.drained.append((channel, deadline))
        self._leave(running)

    def broken(self, running: Running, channel: Channel) -> None:
        """Give up a channel over which an inference was not sent completely."""
        channel.close()
        self._leave(running)

    def crashed(self, running: Running, why: str) -> None:
        """Note that the process has ended during an inference; the next one starts another."""
        with self._lock:
            is_first = not running.is_retired
            if is_first:
                self.counts["crashes"] += 1
                self._retire(running)
        if is_first:
            logger.warning("%s: %s", self.where, why)
            self._note_failure(why)
        self._leave(running)

    def hung(self, running: Running, why: str) -> None:
        """Note that an inference hangs: other inferences of its process may end; then it is killed."""
        with self._lock:
            is_first = not running.is_retired
            if is_first:
                self.counts["hangs"] += 1
                self._retire(running)
        if is_first:
            logger.warning("%s: %s", self.where, why)
            self._note_failure(why)
        self._leave(running)

    def _retire(self, running: Running) -> None:
        running.is_retired = True
        if self._running is running:
            self._running = None

    def _leave(self, running: Running) -> None:
        with self._lock:
            running.busy -= 1
            is_over = running.is_retired and running.busy == 0
        if is_over:
            _end(running)

    # -- the network --------------------------------------------------------------------------------------

    def ask(self, name: str, **arguments: Any) -> tuple[Any, list[int]] | None:
        """Call the process of the network; None if none runs. Raises its error, `DeviceError` if it ends."""
        running = self._running
        if running is None:
            return None
        try:
            return running.process.call(name, self.bounds.call_timeout, None, arguments)
        except ProcessEnded as e:
            with self._lock:
                running.busy += 1
            self.crashed(running, str(e))
            raise DeviceError(f"{self.where}: {e}") from None

    def require(self, check: Callable[[], None]) -> None:
        """Start the process if none runs. Raises `DeviceError`."""
        if self._running is None:
            self._started_again(check)

    def statistics(self) -> dict[str, Any]:
        """The value of PROCESS_STATISTICS."""
        running = self._running
        process = None if running is None else running.process
        is_running = process is not None and process.is_running
        now = {"pid": process.pid, "own_bytes": process.own_bytes} if process and is_running else {}
        return {"pid": 0, "own_bytes": 0, **now, **self.counts}

    def require_room(self) -> None:
        """Raise `UnsupportedError` if the process holds more than it may before its first inference."""
        running, most = self._running, self.bounds.max_bytes
        if most and running is not None and (held := running.process.own_bytes) > most:
            raise UnsupportedError(
                f"{self.where}: the process holds {shown_bytes(held)} ({held} bytes) with the network alone, more than "
                f"MAX_PROCESS_BYTES, {most}; allow it more"
            )

    def close(self) -> None:
        """End the process, or have it drop the network, when the network is no longer used. Does not block."""
        with self._lock:
            running, self._running = self._running, None
            if running is not None and running.busy:
                running.is_retired = True  # the last inference ends it
                return
        if running is None:
            return
        if running.drained or self.bounds.max_bytes:
            _end(running)
            return
        for channel in running.idle:
            channel.close()
        self._dismiss(running.process)

    def _after_fork(self) -> None:
        """The process is the parent's; an inference here starts another."""
        running, self._running = self._running, None
        if running is not None:
            _close_channels(running)
        self._failures, self._not_before = 0, 0.0

    def _end_exit(self, timeout: float) -> None:
        running = self._running
        if running is not None:
            _close_channels(running)


def _end(running: Running) -> None:
    """End a process that nobody waits for. It may hang, so that it is not asked to."""
    _close_channels(running)
    if running.process.is_running:
        running.process.kill("it is not used any longer")
    running.process.end()


def _close_channels(running: Running) -> None:
    for channel in (*running.idle, *(channel for channel, _ in running.drained)):
        channel.close()
