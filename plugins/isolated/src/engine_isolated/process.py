"""`DeviceProcess`: a process that runs a device, as the application sees it: started, called, and ended."""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from engine.errors import DeviceError, PluginError
from engine.limits import check_cancelled, report_progress
from engine.plugin_api import Signature
from engine.runtime.lifecycle import ForkSafeLock, Participant, lifecycle
from engine.startup import dataclass
from engine.threads import start_thread
from engine_isolated.channel import Channel
from engine_isolated.failures import rebuilt
from engine_isolated.memory import SharedMemory, new_memory
from engine_isolated.wire import Connection, decoded, encoded

PROGRAM: Final = "engine_isolated.program"
_TICK: Final = 0.1
"""How often, in seconds, a call looks whether it was cancelled."""
_GRACE: Final = 2.0
"""How long a process may take to end by itself, in seconds, when the interpreter exits."""
_FAULT_BYTES: Final = 1 << 20
_MAX_FAULT: Final = 3000
"""Characters of the traceback of a crash that an error has."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Additions:
    """What the core of a process gets beside what installed packages have.

    Attributes:
        plugins: as "module:name" by device.
        extensions: names of modules, or paths.
    """

    plugins: Mapping[str, str]
    extensions: tuple[str, ...]


class ProcessEnded(Exception):
    """The process has ended, or was killed because it hung; the message says how."""


class DeviceProcess(Participant):
    """A process with a core of its own, and at most one network. Thread-safe.

    It ends with this process, and when it is garbage collected.

    Args:
        device: the device that it is for, in messages.
        additions: for its core.

    Raises `PluginError` if no process can be started.
    """

    def __init__(self, device: str, additions: Additions) -> None:
        self.device = device
        self._additions = additions
        self._lock = ForkSafeLock()
        self._signalling = ForkSafeLock()  # not the lock of calls, which may take minutes
        self._calls, calls = Connection.pair()
        self._signals, signals = Connection.pair()
        self._channels = 0
        self._why_killed = ""
        faults = self._fault_fd = new_memory()  # for the traceback of a crash
        try:
            self._popen = _starter.start([calls.fileno(), signals.fileno(), faults])
        except BaseException as e:
            os.close(faults)
            if not isinstance(e, OSError):
                raise
            raise PluginError(f"ISOLATED: the process for {device} cannot be started: {e}") from e
        finally:
            calls.close()
            signals.close()
        self.pid = self._popen.pid
        self._pidfd = _pidfd(self.pid)
        self._statm = _opened(f"/proc/{self.pid}/statm")
        self._is_begun = False
        owned = _Owned(self._popen, [self._calls, self._signals], [faults, self._pidfd, self._statm])
        self._owned = owned
        self._finalizer = weakref.finalize(self, owned.close)
        self._finalizer.atexit = False
        lifecycle.track(self)

    # -- calls --------------------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        timeout: float,
        shared: SharedMemory | None = None,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[Any, list[int]]:
        """Have the process do something, one call at a time; returns its answer and the descriptors that came with it.

        `timeout` in seconds; 0: none. A call that ends early, by Ctrl-C, a cancellation or its timeout, kills the
        process. Raises the error that the process reports, and `ProcessEnded`.
        """
        with self._lock:
            is_answered = False
            try:
                if not self._is_begun:
                    given = {"plugins": dict(self._additions.plugins), "extensions": self._additions.extensions}
                    begun, _ = self._exchange("begin", timeout, None, given)
                    if "error" in begun:
                        raise rebuilt(begun["error"])
                    self._is_begun = True
                answer = self._exchange(name, timeout, shared, arguments)
                is_answered = True
            finally:
                if not is_answered and self.is_running:
                    self.kill(f"it was ended during {name!r}")
        if "error" in answer[0]:
            for fd in answer[1]:
                os.close(fd)
            raise rebuilt(answer[0]["error"])
        return answer[0].get("result"), answer[1]

    def _exchange(
        self, name: str, timeout: float, shared: SharedMemory | None, arguments: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[int]]:
        end = time.monotonic() + timeout if timeout else None

        def wait() -> None:
            while not self.wait_readable(self._calls.fileno(), _TICK):
                check_cancelled()
                if end is not None and time.monotonic() > end:
                    self.kill(f"it did not answer within {timeout:g} s (CALL_TIMEOUT) when it was asked to {name}")
                    raise EOFError

        request: dict[str, Any] = {"call": name, "arguments": dict(arguments)}
        if shared is not None:
            request["shared"] = shared.size
        try:
            self._calls.send(encoded(request), [] if shared is None else [shared.fd])
            while True:
                message, fds = self._calls.receive(wait)
                answer = decoded(message)
                if not isinstance(answer, dict):
                    raise DeviceError(f"the process of {self.device} sent a malformed answer: {answer!r:.80}")
                if "progress" not in answer:
                    return answer, fds
                what, share = answer["progress"]
                report_progress("lower", str(what), float(share))
        except (OSError, EOFError) as e:
            raise ProcessEnded(self.why_ended(f"during {name!r}")) from e

    # -- inferences ---------------------------------------------------------------------------------------

    def open_channel(self, signature: Signature) -> Channel:
        """A new connection for inferences of the network. Raises `ProcessEnded`."""
        connection, theirs = Connection.pair()
        try:
            with self._signalling:
                self._channels += 1
                number = self._channels
                self._signals.send(encoded({"open": number}), [theirs.fileno()])
        except OSError as e:
            raise ProcessEnded(self.why_ended("between two inferences")) from e
        finally:
            theirs.close()
        return Channel(connection, number, signature)

    def signal(self, message: Mapping[str, Any]) -> None:
        """Tell the process something that it does not answer. Has no effect if it has ended."""
        with self._signalling, suppress(OSError):
            self._signals.send(encoded(message))

    def wait_readable(self, fd: int, timeout: float | None, wake_fd: int = -1) -> bool:
        """Wait until `fd` can be read or the process has ended; False after `timeout` (s), or if `wake_fd` can be read.

        Raises `EOFError` if the process has ended and there is nothing to read.
        """
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
        if wake_fd >= 0:
            poll.register(wake_fd, select.POLLIN)
        ready = {each for each, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1e3)}
        if fd in ready:
            return True
        if self._pidfd >= 0 and self._pidfd in ready:
            raise EOFError
        return False

    # -- the end ------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._popen.poll() is None

    @property
    def own_bytes(self) -> int:
        """The bytes of memory that no other process shares; 0 if it has ended."""
        try:
            _, resident, shared = os.pread(self._statm, 128, 0).split()[:3]
            return (int(resident) - int(shared)) * _PAGE
        except (OSError, ValueError):
            return 0

    def kill(self, why: str) -> None:
        """End the process at once."""
        self._why_killed = self._why_killed or why
        self._popen.kill()

    def why_ended(self, when: str) -> str:
        """How the process has ended, in words, with the traceback of a crash. Waits for its end for a short time."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_GRACE)
        status = self._popen.returncode
        who = f"the process of {self.device} (pid {self.pid})"
        if self._why_killed:
            return f"{who} was killed {when}: {self._why_killed}"
        if status is None:
            return f"{who} closed its connection {when}"
        if status >= 0:
            return f"{who} exited with status {status} {when}"
        with suppress(ValueError):
            return f"{who} was ended by {signal.Signals(-status).name} {when}{self._fault()}"
        return f"{who} was ended by signal {-status} {when}{self._fault()}"

    def _fault(self) -> str:
        with suppress(OSError):
            text = os.pread(self._fault_fd, _FAULT_BYTES, 0).decode(errors="replace").strip()
            return f":\n{text[:_MAX_FAULT]}" if text else ""
        return ""

    def end(self) -> None:
        """Let the process end by itself, once its calls are done. Does not block. Further calls have no effect.

        Descriptors are closed with the object: another thread may still wait for them, and their numbers be used again.
        """
        self._owned.end()

    def _after_fork(self) -> None:
        """The process belongs to the parent: nothing of it is used, ended or waited for here."""
        self._finalizer.detach()
        self._owned.forget()

    def _end_exit(self, timeout: float) -> None:
        self.end()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(min(timeout, _GRACE))
        if self.is_running:
            self.kill("the interpreter exits")
            self._popen.wait()


class _Owned:
    """What a process needs here. Holds no reference to it, so that it can be ended when that is collected."""

    def __init__(self, popen: subprocess.Popen[bytes], connections: Sequence[Connection], fds: Sequence[int]) -> None:
        self._popen = popen
        self._is_ended = False
        self._connections, self._fds = list(connections), [fd for fd in fds if fd >= 0]

    def end(self) -> None:
        for connection in self._connections:
            connection.shut_down()
        if not self._is_ended and self._popen.poll() is None:
            _starter.end(self._popen)
        self._is_ended = True

    def forget(self) -> None:
        self._popen.returncode = 0  # it is not a child of this process
        self._close()

    def close(self) -> None:
        self.end()
        self._close()

    def _close(self) -> None:
        for connection in self._connections:
            connection.close()
        for fd in self._fds:
            with suppress(OSError):
                os.close(fd)
        self._fds.clear()


class _Starter(Participant):
    """A thread that starts all processes: the system ends a process together with the thread that started it."""

    def __init__(self) -> None:
        self._renew()
        lifecycle.track(self)

    def _renew(self) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.ending: list[tuple[float, subprocess.Popen[bytes]]] = []
        """Processes that were told to end, and when they are killed."""

    def start(self, fds: Sequence[int]) -> subprocess.Popen[bytes]:
        """Start a process that inherits these descriptors. Raises `OSError`."""
        lifecycle.refuse_at_exit("starting a process")
        done = threading.Lock()
        done.acquire()
        made: list[subprocess.Popen[bytes] | OSError] = []

        def order() -> None:
            try:
                made.append(_started(fds))
            except OSError as e:
                made.append(e)
            finally:
                done.release()

        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="ISOLATED:starter", daemon=True)
                start_thread(self._thread)
            self._orders.put(order)
        done.acquire()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]

    def end(self, popen: subprocess.Popen[bytes]) -> None:
        """Take note of the end of a process, which is killed if that takes too long. Does not block."""
        self.ending.append((time.monotonic() + _GRACE, popen))
        self._orders.put(lambda: None)

    def _work(self) -> None:
        while True:
            with suppress(queue.Empty):
                self._orders.get(timeout=_TICK if self.ending else None)()
            self.reap()

    def reap(self) -> None:
        """Take note of processes that have ended, and kill those that did not end in time."""
        now = time.monotonic()
        for entry in self.ending.copy():
            deadline, popen = entry
            if popen.poll() is None and now > deadline:
                popen.kill()
            if popen.poll() is not None:
                with suppress(ValueError):
                    self.ending.remove(entry)

    def _after_fork(self) -> None:
        for _, popen in self.ending:
            popen.returncode = 0  # it is not a child of this process
        self._renew()

    def _end_exit(self, timeout: float) -> None:
        for _, popen in self.ending:
            with suppress(subprocess.TimeoutExpired):
                popen.wait(min(timeout, _GRACE))
            if popen.poll() is None:
                popen.kill()
                popen.wait()
        self.ending.clear()


_starter: Final = _Starter()


def _started(fds: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", PROGRAM, *map(str, fds), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=2 if _is_open(2) else subprocess.DEVNULL,  # what a driver prints is not a result of the application
        pass_fds=fds,
        start_new_session=True,  # Ctrl-C at a terminal is for the application, which ends the process
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def surroundings() -> dict[str, Any]:
    """What a process that starts now inherits, for one that was started before."""
    path = [*filter(None, sys.path)]
    inherited: dict[str, Any] = {"environment": {**os.environ, "PYTHONPATH": os.pathsep.join(path)}, "path": path}
    with suppress(OSError):  # it was removed
        inherited["folder"] = os.getcwd()
    return inherited


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # an older system: the end of its connections tells the same
        return -1


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
