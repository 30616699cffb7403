"""`ProcessPool`: processes that have no network at the moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from engine.errors import DeviceError, PluginError
from engine.runtime.lifecycle import ForkSafeLock, Participant, lifecycle
from engine_isolated.memory import SharedMemory
from engine_isolated.process import Additions, DeviceProcess, ProcessEnded, surroundings

_PING_SECONDS: Final = 10.0


class ProcessPool(Participant):
    """Starts processes, and keeps the one that was last used, for the next query or network on its device. Thread-safe.

    All cores of this process share it: a process has no configuration of its own but its plugins. The kept process ends
    by itself after a short time (`engine_isolated.service`).
    """

    def __init__(self) -> None:
        self._spare: tuple[DeviceProcess, Additions] | None = None
        self._lock = ForkSafeLock()
        lifecycle.track(self)

    def take(self, device: str, additions: Additions) -> DeviceProcess:
        """A process for a device. Raises `PluginError` if none can be started."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            process, known = spare
            if process.device == device and known == additions:
                with suppress(ProcessEnded):  # by itself, since it was kept for long enough
                    process.call("ping", _PING_SECONDS, None, surroundings())
                    return process
            process.end()
        return DeviceProcess(device, additions)

    def give_back(self, process: DeviceProcess, additions: Additions) -> None:
        """Keep a process that has no network any longer, and end the one that was kept before."""
        with self._lock:
            former, self._spare = self._spare, (process, additions)
        if former is not None:
            former[0].end()

    @contextmanager
    def borrowed(self, device: str, additions: Additions) -> Iterator[DeviceProcess]:
        """A process for calls that leave nothing in it. Raises `DeviceError` if it ends."""
        process = self.take(device, additions)
        try:
            yield process
        except ProcessEnded as e:
            process.end()
            raise DeviceError(f"ISOLATED:{device}: {e}") from None
        except PluginError:  # a plugin that failed once is not tried again there
            process.end()
            raise
        except BaseException:
            self.give_back(process, additions)
            raise
        self.give_back(process, additions)

    def ask(
        self,
        device: str,
        additions: Additions,
        name: str,
        timeout: float,
        shared: SharedMemory,
        arguments: Mapping[str, Any],
    ) -> Any:
        """The answer to one call. Raises the error that the process reports, `DeviceError` if it ends."""
        with self.borrowed(device, additions) as process:
            return process.call(name, timeout, shared, arguments)[0]

    def _after_fork(self) -> None:
        self._spare = None


pool: Final = ProcessPool()
