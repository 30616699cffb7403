"""One device of a network: its state, and its network while there is one."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping

from engine.plugin_api import (
    CoreHandle,
    ExecutableNetwork,
    Executor,
    Model,
    SupportLevel,
    ThreadExecutor,
    UnsupportedError,
)
from engine.properties import EXCLUSIVE_ASYNC_REQUESTS, OPTIMAL_NUMBER_OF_INFER_REQUESTS
from engine_auto.devices import Device


class State(enum.Enum):
    """The state of a candidate; the metric CANDIDATES has the values."""

    WAITING = "waiting"
    COMPILING = "compiling"
    READY = "ready"
    CHOSEN = "chosen"
    NOT_CHOSEN = "not chosen"
    REFUSED = "refused"
    FAILED = "failed"


OUT = (State.REFUSED, State.FAILED)
"""The states of a device that is not used again."""


class Candidate:
    """A device, and the network on it. Its attributes are guarded by the lock of the `Selection`.

    Attributes:
        why: the state in words.
        error: the error of a device that refused the model, or failed.
        network: None before it is compiled, and after it was not chosen.
        executor: runs background inferences on the network, as many at once as keep the device busy.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.state = State.WAITING
        self.why = "not compiled yet"
        self.error: Exception | None = None
        self.network: ExecutableNetwork | None = None
        self.executor: Executor | None = None
        self.compile_seconds: float | None = None
        self.milliseconds: float | None = None

    @property
    def name(self) -> str:
        """The device string, such as "CPU"."""
        return self.device.name

    def compile(self, core: CoreHandle, model: Model) -> tuple[ExecutableNetwork, Executor, str]:
        """A network on the device, an executor for it, and how the device runs the model, in words.

        Raises `UnsupportedError` if the device refuses operations, and the errors of the device. Changes nothing.
        """
        answer = core.query_model(model, self.name, self.device.config)
        if refused := answer.at(SupportLevel.REFUSED):
            node, support = next(iter(refused.items()))
            count = len(refused)
            raise UnsupportedError(
                f"{self.name} refuses {count} of {len(answer.nodes)} operations, first `{node}`: {support.reason}"
            )
        by_reference = len(answer.at(SupportLevel.REFERENCE))
        words = f", {by_reference} of {len(answer.nodes)} operations by reference evaluation" if by_reference else ""
        network = core.compile_model(model, self.name, self.device.config)
        return network, executor_of(network, self.name), f"it runs the whole model{words}"

    def take(self, network: ExecutableNetwork, executor: Executor, why: str, begun: float) -> None:
        """Be ready, with a network whose compilation began at `begun` (s, of `time.perf_counter`)."""
        self.network, self.executor, self.why = network, executor, why
        self.compile_seconds = time.perf_counter() - begun
        self.state, self.error = State.READY, None

    def drop(self, state: State, why: str) -> None:
        """Give up the network; requests that run on it keep what they need."""
        self.network = self.executor = None
        self.state, self.why = state, why

    def described(self) -> Mapping[str, object]:
        """The entry of the metric CANDIDATES."""
        figures = {"compile_seconds": self.compile_seconds, "milliseconds": self.milliseconds}
        known = {name: round(value, 6) for name, value in figures.items() if value is not None}
        return {"state": self.state.value, "why": self.why, **known}


def executor_of(network: ExecutableNetwork, device: str) -> Executor:
    """An executor with a thread for each request that keeps the network's device busy."""
    if EXCLUSIVE_ASYNC_REQUESTS.name in network.config and network.config[EXCLUSIVE_ASYNC_REQUESTS]:
        return network.task_executor
    threads = int(network.get_metric(OPTIMAL_NUMBER_OF_INFER_REQUESTS.name))
    return ThreadExecutor(f"AUTO:{network.name}:{device}", threads)
