"""One inference in the other process."""

from __future__ import annotations

import time
from typing import Any

from engine.plugin_api import DeviceError, EngineError, NodeProfile, RequestOwner, SyncInferRequest
from engine_isolated.channel import Channel
from engine_isolated.supervisor import Running, Supervisor


class IsolatedInferRequest(SyncInferRequest):
    """Holds nothing in the other process between inferences; the values of variables stay here."""

    def __init__(self, network: RequestOwner, supervisor: Supervisor) -> None:
        super().__init__(network)
        self._supervisor = supervisor
        self._used: tuple[Running, Channel] | None = None
        self._deadline: float | None = None

    def start_pipeline(self) -> None:
        """Send the inputs. If the process has ended before, another one is started."""
        supervisor = self._supervisor
        while True:
            running, channel = self._used = supervisor.channel(self.check_cancelled)
            try:
                channel.begin(self.inputs)
            except OSError:  # the process has ended before it had the inference
                self._used = None
                channel.close()
                supervisor.crashed(running, running.process.why_ended("between two inferences"))
                continue
            except EngineError:
                self._used = None
                supervisor.broken(running, channel)
                raise
            break
        timeout = supervisor.bounds.hang_timeout
        self._deadline = time.monotonic() + timeout if timeout else None

    def wait_pipeline(self) -> None:
        """Take the outputs. Raises the error of the inference, and `DeviceError` if the process crashes or hangs."""
        while (found := self._result()) is None:
            self.start_pipeline()
        outputs, profile = found
        if profile:
            self.record_nodes(profile)
        self._store(outputs)

    def _result(self) -> tuple[list[Any], list[NodeProfile]] | None:
        """The outputs and the profile; None if the process has ended before it began the inference."""
        assert self._used is not None
        supervisor, (running, channel) = self._supervisor, self._used
        try:
            result = channel.result(self._wait)
        except _Stopped:
            raise self.cancellation or DeviceError("the inference was stopped") from None  # see `abort_pipeline`
        except (EOFError, OSError):
            self._used = None
            has_begun = channel.has_begun
            channel.close()
            why = running.process.why_ended("during an inference" if has_begun else "between two inferences")
            supervisor.crashed(running, why)
            if not has_begun:
                return None
            raise DeviceError(self._said(why)) from None
        except _Hung:
            self._used = None
            why = (
                f"the process of {running.process.device} (pid {running.process.pid}) gave no result within "
                f"{supervisor.bounds.hang_timeout:g} s (HANG_TIMEOUT) and is replaced"
            )
            channel.close()
            supervisor.hung(running, why)
            raise DeviceError(self._said(why)) from None
        except EngineError:
            self._used = None
            supervisor.done(running, channel)
            raise
        self._used = None
        supervisor.done(running, channel)
        return result

    def _store(self, outputs: list[Any]) -> None:
        if not self.has_output_tensors:
            self.store_outputs(outputs)
            return
        for index, value in enumerate(outputs):
            self.store_output(index, value, copy=False)

    def _wait(self) -> None:
        """Return when there is a result. Raises `_Stopped` after a cancellation, `_Hung` after HANG_TIMEOUT."""
        assert self._used is not None
        running, channel = self._used
        while True:
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if running.process.wait_readable(channel.connection.fileno(), left, channel.wake_fd):
                return
            if self.cancellation is not None:
                raise _Stopped
            if self._deadline is not None and time.monotonic() >= self._deadline:
                raise _Hung
            channel.woken()

    def _said(self, why: str) -> str:
        kept = "; its variables have the values from before" if self.states is not None else ""
        return f"{self.signature.network}: request {self.request_id} failed{kept}: {why}"

    def request_cancel(self, error: EngineError) -> None:
        """Also stop waiting for the other process, and have it cancel the inference there."""
        super().request_cancel(error)
        used = self._used
        if used is not None:
            used[1].wake()

    def abort_pipeline(self) -> None:
        """Leave an inference that runs: its inputs and outputs are in memory that is not used before it ends."""
        used, self._used = self._used, None
        if used is not None:
            self._supervisor.abandoned(*used)


class _Stopped(Exception):
    """The inference was cancelled."""


class _Hung(Exception):
    """The inference took longer than HANG_TIMEOUT."""
