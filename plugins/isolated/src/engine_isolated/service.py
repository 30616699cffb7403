"""What the other process does: calls, one at a time, and inferences, each channel in a thread of its own."""

from __future__ import annotations

import os
import select
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from engine.errors import DeviceError, EngineWarning, UnsupportedError
from engine.limits import watched
from engine.plugin_api import ExecutableNetwork, QueryResult
from engine.properties import EXECUTION_SUMMARY, SUPPORTED_CONFIG_KEYS, SUPPORTED_METRICS
from engine_isolated.failures import described
from engine_isolated.inferences import Inferences
from engine_isolated.memory import SharedMemory, new_memory, seal
from engine_isolated.wire import Connection, decoded, encoded

_SPARE_SECONDS: Final = 10.0
"""How long a process without a network waits for one."""
_TRUST: Final = "TRUST_BLOB"


class Devices(Protocol):
    """The part of a core that the service uses."""

    @property
    def extensions(self) -> Any:
        """The extensions of installed packages, which are loaded for it."""

    def compile_part(self, model: Any, device: Any, config: Mapping[str, object] | None = None) -> ExecutableNetwork:
        """Compile a model, without warnings."""

    def import_model(self, blob: Any, device: Any, config: Mapping[str, object] | None = None) -> ExecutableNetwork:
        """Import a blob."""

    def query_model(self, model: Any, device: str, config: Mapping[str, object] | None = None) -> QueryResult:
        """How a device supports each node."""

    def get_property(self, device: str, name: str) -> Any:
        """A metric of a device."""


class Service:
    """Answers calls, and starts the threads of channels.

    Args:
        core: makes networks.
        add: adds plugins and extensions to it.
    """

    def __init__(self, core: Devices, add: Callable[[Mapping[str, Any]], None]) -> None:
        self._core, self._add = core, add
        self._network: ExecutableNetwork | None = None
        self._channels: dict[int, Inferences] = {}
        self._lock = threading.Lock()

    def serve(self, connection: Connection) -> None:
        """Answer calls until the application closes the connection, or needs no process for some seconds."""
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        with suppress(EOFError, OSError):
            while True:
                while not poll.poll(_SPARE_SECONDS * 1e3):
                    if self._network is None:
                        return
                message, fds = connection.receive()
                self._answer(connection, decoded(message), fds)

    def _answer(self, connection: Connection, request: Mapping[str, Any], fds: list[int]) -> None:
        sent: list[int] = []

        def progress(what: str, share: float) -> None:
            connection.send(encoded({"progress": [what, share]}))

        try:
            shared = SharedMemory.received(fds[0], request["shared"]) if fds else None
            if shared is not None:
                shared.close_fd()
            with watched(None, progress), warnings.catch_warnings():
                warnings.simplefilter("ignore", EngineWarning)  # the application gets them as remarks
                answer = {"result": self._call(request["call"], shared, request["arguments"], sent)}
        except (Exception, SystemExit) as e:
            answer = {"error": described(e)}
        connection.send(encoded(answer), sent)
        for fd in sent:
            os.close(fd)

    def _call(self, name: str, shared: SharedMemory | None, given: Mapping[str, Any], sent: list[int]) -> Any:
        match name:
            case "begin":
                return self._add(given)
            case "ping":
                return _adopt(given)
            case "query" if shared is not None:
                from engine_isolated.models import model_in
                from engine_isolated.query import described as described_answer

                self._core.extensions  # noqa: B018  (whose operators the model may have)
                model = model_in(shared, given["model"])
                return described_answer(self._core.query_model(model, given["device"], self._config(given)), model)
            case "compile" if shared is not None:
                from engine_isolated.models import model_in  # which blobs do not need

                self._core.extensions  # noqa: B018
                model = model_in(shared, given["model"])
                return self._made(self._core.compile_part(model, given["device"], self._config(given)))
            case "import" if shared is not None:
                blob = shared.buffer[: given["size"]]
                return self._made(self._core.import_model(blob, given["device"], self._config(given)))
        network = self._network
        if network is None:
            raise DeviceError("the process has no network")
        match name:
            case "export":
                return _exported(network, sent)
            case "memory":
                return network.memory_statistics()
            case "metrics":
                names = network.get_metric(SUPPORTED_METRICS.name)
                return {each: _plain(network.get_metric(each)) for each in names}
            case "release":
                return network.release_memory()
            case "prepare":
                return network.prepare([tuple(shape) for shape in given["shapes"]])
        raise UnsupportedError(f"the process knows no call {name!r}")

    def _config(self, given: Mapping[str, Any]) -> dict[str, Any]:
        keys = self._core.get_property(given["device"], SUPPORTED_CONFIG_KEYS.name)
        passed = {key: value for key, value in given["passed"].items() if key in keys}
        trust = {_TRUST: True} if given.get("is_trusted") and _TRUST in keys else {}
        return {**passed, **trust, **given["own"]}

    def _made(self, network: ExecutableNetwork) -> dict[str, Any]:
        """Keep a network, and describe it."""
        self._network = network
        signature = network.signature
        metrics = network.get_metric(SUPPORTED_METRICS.name)
        return {
            "inputs": [port.to_json() for port in signature.inputs],
            "outputs": [port.to_json() for port in signature.outputs],
            "variables": [state.to_json() for state in signature.states],
            "is_cached": network.loaded_from_cache,
            "summary": _plain(network.get_metric(EXECUTION_SUMMARY.name)),
            "metrics": {name: _plain(network.get_metric(name)) for name in metrics if name in _TOLD},
        }

    # -- signals ------------------------------------------------------------------------------------------

    def listen(self, connection: Connection) -> None:
        """Open channels, and cancel inferences, until the application closes the connection."""
        with suppress(EOFError, OSError, DeviceError):
            while True:
                message, fds = connection.receive()
                self._follow(decoded(message), fds)

    def _follow(self, message: Mapping[str, Any], fds: list[int]) -> None:
        if "open" in message:
            network, number = self._network, message["open"]
            if network is None:
                os.close(fds[0])
                return
            channel = Inferences(fds[0], network)
            with self._lock:
                self._channels[number] = channel
            thread = threading.Thread(target=self._run, args=(number, channel), name=f"channel-{number}", daemon=True)
            thread.start()
        elif "cancel" in message:
            number, run = message["cancel"]
            channel_or_none = self._channels.get(number)
            if channel_or_none is not None:
                channel_or_none.cancel(run)
        elif "drop" in message:
            self._network = None

    def _run(self, number: int, channel: Inferences) -> None:
        try:
            channel.serve()
        finally:
            with self._lock:
                del self._channels[number]


_TOLD: Final = frozenset({
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS", "EXECUTION_DEVICES", "EXECUTION_PRECISION", "EXECUTION_THREADS",
    "INSTRUCTION_SET",
})  # fmt: skip
"""The metrics that the network of the application also has, as they were when the network was made."""


def _exported(network: ExecutableNetwork, sent: list[int]) -> int:
    fd = new_memory()
    sent.append(fd)
    with open(fd, "wb", closefd=False) as stream:
        network.export_model(stream)
    seal(fd)
    return os.fstat(fd).st_size


def _adopt(surroundings: Mapping[str, Any]) -> None:
    """Be as if this process had started now; what drivers have read before stays, as it does in the application."""
    environment = surroundings["environment"]
    for name in [*os.environ]:
        if name not in environment:
            del os.environ[name]
    os.environ.update(environment)
    sys.path[:] = surroundings["path"]
    with suppress(OSError):
        os.chdir(surroundings.get("folder", "."))


def _plain(value: Any) -> Any:
    """A property's value as JSON values."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
