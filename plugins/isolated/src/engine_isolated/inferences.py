"""`Inferences`: the inferences of one channel, in the process of the device."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.plugin_api import Cancelled, DeviceError, EngineError, ExecutableNetwork
from engine.runtime.growing import plain
from engine.runtime.states import States
from engine_isolated.channel import (
    BLOCK,
    BLOCK_FORM,
    DONE,
    ERROR,
    FORGET,
    FORGET_FORM,
    INLINE_BYTES,
    JSON_FORM,
    LAYOUT,
    OUTPUTS,
    RUN,
    RUN_FORM,
    VALUES,
)
from engine_isolated.failures import described
from engine_isolated.layout import Layout, Packing, begun_run, unpacked
from engine_isolated.memory import SharedMemory
from engine_isolated.wire import Connection, decoded, encoded

Array = NDArray[Any]


class Inferences:
    """Runs the inferences that arrive at a channel, one after the other, by one request of the network.

    Args:
        fd: of the connection.
        network: the device's.
    """

    def __init__(self, fd: int, network: ExecutableNetwork) -> None:
        self._connection = Connection(socket.socket(fileno=fd))
        self._request = network.create_sync_request()
        self._count = len(network.outputs)
        self._given = len(network.inputs)
        self._states: PassedStates | None = None
        if self._request.states is not None:
            self._states = self._request.states = PassedStates(network.signature.states, network.signature.network)
        self._lock = threading.Lock()
        self._run = self._cancelled = 0
        self._shared: SharedMemory | None = None
        self._begun: Array
        self._block: SharedMemory
        self._blocks: dict[int, SharedMemory] = {}
        self._layout: Layout | None = None
        self._inputs: list[Array] = []
        self._results: list[Array | None] = []

    def serve(self) -> None:
        """Run inferences until the application closes the channel."""
        try:
            with suppress(EOFError, OSError):
                while True:
                    message, fds = self._connection.receive()
                    self._follow(message, fds)
        finally:
            self._connection.close()

    def cancel(self, run: int) -> None:
        """Stop an inference, by its number, if it has not ended."""
        with self._lock:
            self._cancelled = run
            if self._run == run:
                self._request.request_cancel(Cancelled("the inference was cancelled"))

    def _follow(self, message: bytes, fds: list[int]) -> None:
        kind = message[:1]
        if kind == RUN:
            _, run, number = RUN_FORM.unpack(message)
            self._answer(run, number, None)
        elif kind == VALUES:
            content = decoded(message[1:])
            self._take_shared(content["shared"], fds)
            self._answer(content["run"], 0, content["values"])
        elif kind == LAYOUT:
            content = decoded(message[1:])
            self._take_shared(content["shared"], fds)
            self._lay_out(Layout.from_json(content))
        elif kind == BLOCK:
            _, number, size = BLOCK_FORM.unpack(message)
            self._blocks[number] = _received(fds, size)
        elif kind == FORGET:
            _, number = FORGET_FORM.unpack(message)
            self._blocks.pop(number, None)

    def _take_shared(self, size: int, fds: Sequence[int]) -> None:
        if fds:
            self._shared = _received(fds, size)
            self._begun = begun_run(self._shared)

    def _lay_out(self, layout: Layout) -> None:
        shared = self._shared
        assert shared is not None
        self._layout = layout
        self._inputs = [place.view(shared) for place in layout.inputs]
        self._results = [None if place is None or place.is_in_block else place.view(shared) for place in layout.outputs]
        self._request.clear_tensors()
        self._blocks.clear()

    def _answer(self, run: int, number: int, values: Any) -> None:
        try:
            outputs = self._infer(run, number, values)
            message, fds = self._result(outputs, is_laid_out=values is None)
        except EngineError as e:
            message, fds = ERROR + encoded(described(e)), []
        except Exception as e:  # a mistake in this program ends the inference, and not the channel
            message, fds = ERROR + encoded(described(DeviceError(f"{type(e).__name__}: {e}"))), []
        self._connection.send(message, fds)
        for fd in fds:
            os.close(fd)

    def _infer(self, run: int, number: int, values: Any) -> list[Any]:
        request = self._request
        if values is None:
            inputs: list[Any] = self._inputs
            self._bind_block(number)
        else:
            shared = self._shared
            assert shared is not None
            inputs = [unpacked(each, lambda place: place.view(shared)) for each in values]
        if self._states is not None:
            self._states.given = inputs[self._given :]
            inputs = inputs[: self._given]
        self._begun[0] = run
        with self._lock:
            request.begin(inputs)
            if self._cancelled == run:
                raise Cancelled("the inference was cancelled")
            self._run = run
        try:
            result = request.run_stages()
        finally:
            with self._lock:
                self._run = 0
        outputs = [result[index] for index in range(self._count)]
        if self._states is not None:
            outputs += [plain(value) for value in self._states.taken()]
        return outputs

    def _bind_block(self, number: int) -> None:
        """Have the device write large outputs where the application's arrays will be."""
        layout = self._layout
        if not number or layout is None:
            return
        block = self._blocks[number]
        for index, place in enumerate(layout.outputs[: self._count]):
            if place is not None and place.is_in_block:
                self._request.set_output_tensor(index, place.view(block))
        self._block = block

    def _result(self, outputs: Sequence[Any], *, is_laid_out: bool) -> tuple[bytes, list[int]]:
        others: dict[int, Any] = {}
        for index, value in enumerate(outputs):
            place = self._layout.outputs[index] if is_laid_out and self._layout is not None else None
            if place is None or not isinstance(value, np.ndarray) or value.shape != place.shape:
                others[index] = value
            elif not place.is_in_block:
                view = self._results[index]
                assert view is not None
                np.copyto(view, value)
            elif index >= self._count:  # the value of a variable, for which a device takes no array
                np.copyto(place.view(self._block), value)
        profile = self._request.profiling_info.nodes if self._request.is_profiling else ()
        if not others and not profile:
            return DONE, []
        return self._described(others, [astuple(record) for record in profile])

    def _described(self, others: Mapping[int, Any], profile: Sequence[Any]) -> tuple[bytes, list[int]]:
        packing = Packing()
        content = {
            "outputs": {str(index): packing.described(value) for index, value in others.items()},
            "profile": profile,
            "size": packing.size,
        }
        content["size"] = packing.size
        text = encoded(content)
        head = JSON_FORM.pack(OUTPUTS, len(text)) + text
        if packing.size <= INLINE_BYTES:
            data = np.zeros(packing.size, np.uint8)
            packing.write(data)
            return head + data.tobytes(), []
        shared = SharedMemory.created(packing.size)
        packing.write(shared.bytes)
        return head, [os.dup(shared.fd)]


class PassedStates(States):
    """Values of variables that come with each inference, and leave with its result."""

    given: list[Any]
    _taken: list[Any]

    def begin(self, lengths: Mapping[str, int]) -> list[Any]:
        """The values that came."""
        return self.given

    def commit(self, values: Sequence[Any]) -> None:
        """Keep the values until they are sent. The application checks their bounds."""
        self._taken = list(values)

    def taken(self) -> list[Any]:
        """The values after the inference."""
        values, self._taken = self._taken, []
        return values


def _received(fds: Sequence[int], size: int) -> SharedMemory:
    shared = SharedMemory.received(fds[0], size)
    shared.close_fd()
    return shared
