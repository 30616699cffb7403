"""`Channel`: one inference at a time in the other process, with its tensors in shared memory."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import DeviceError, EngineError
from engine.ir import ElementType
from engine.plugin_api import NodeProfile, Signature
from engine.runtime.growing import plain
from engine_isolated.failures import rebuilt
from engine_isolated.layout import HEAD, Layout, Packing, Place, begun_run, is_plain, known_shape, unpacked
from engine_isolated.memory import SharedMemory
from engine_isolated.wire import Connection, decoded, encoded

Array = NDArray[Any]

# What the application sends. A layout, or a block, comes before the inferences that use it.
LAYOUT, BLOCK, FORGET, RUN, VALUES = b"L", b"B", b"F", b"R", b"V"
# What the other process answers to an inference.
DONE, OUTPUTS, ERROR = b"D", b"O", b"E"
RUN_FORM: Final = struct.Struct("<cQI")
BLOCK_FORM: Final = struct.Struct("<cIQ")
FORGET_FORM: Final = struct.Struct("<cI")
JSON_FORM: Final = struct.Struct("<cI")
INLINE_BYTES: Final = 1 << 15
"""Outputs of unknown shapes that take no more bytes are part of the message."""
_KEPT_BLOCKS: Final = 2
"""How many blocks wait for the next inferences."""

_View = Callable[[int, tuple[int, ...], np.dtype[Any]], Array]
"""Returns the array at a byte, of a shape and type."""

_forks = 0
"""How often this process has been forked. Arrays of the child see a block, which is then not used again."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_count_fork)


class Block:
    """Memory for the large outputs of one inference, of which their arrays are views."""

    __slots__ = ("number", "shared")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.shared = SharedMemory.created(size, is_private=True)


class _Use:
    """The use of a block by arrays. When the last of them is gone, the block is kept for another inference."""

    __slots__ = ("_block", "_forks", "_kept")

    def __init__(self, block: Block, kept: list[Block]) -> None:
        self._block, self._kept, self._forks = block, kept, _forks

    def __del__(self) -> None:
        if self._forks == _forks:
            self._kept.append(self._block)


class _Held:
    """The memory of an array in a block; numpy keeps it as long as the array, or a view of it."""

    __slots__ = ("__array_interface__", "_use")

    def __init__(self, view: Array, use: _Use) -> None:
        self._use = use
        data = (view.__array_interface__["data"][0], False)
        self.__array_interface__ = {"data": data, "shape": (view.nbytes,), "typestr": "|u1", "version": 3}


class Channel:
    """A connection to a thread of the other process, and their shared memory. Used by one inference at a time.

    Args:
        connection: to the thread.
        number: of the channel in its process.
        signature: of the network.
    """

    def __init__(self, connection: Connection, number: int, signature: Signature) -> None:
        self.connection, self.number = connection, number
        self.run = 0
        self.is_running = False
        """Whether an inference was sent, and its result has not come."""
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """What `wake` makes readable."""
        self._waking = threading.Lock()  # the descriptor must not be closed, and its number used again, meanwhile
        self._signature = signature
        states = signature.states
        self._outputs = (*signature.outputs, *(each.after for each in states))
        ports = (*signature.inputs, *(each.before for each in states))
        self._is_plain = all(map(is_plain, ports))
        self._shared: SharedMemory | None = None
        self._key: object = None
        self._layout: Layout | None = None
        self._inputs: list[Array] = []
        self._results: list[Array | None] = []
        self._block: Block | None = None
        self._blocks: list[Block] = []
        self._block_number = 0

    @property
    def has_begun(self) -> bool:
        """Whether the device has begun the last inference: a crash may be its fault, and it may have had effects."""
        return self._shared is not None and int(begun_run(self._shared)[0]) == self.run

    def begin(self, values: Sequence[Any]) -> None:
        """Send the inputs and start the inference. Raises `OSError` if the other process has ended."""
        self.run += 1
        self.is_running = False
        if not self._is_plain:
            self._send_values(values)
            self.is_running = True
            return
        arrays = [value if isinstance(value, np.ndarray) else plain(value) for value in values]
        key = [(array.shape, array.dtype) for array in arrays]
        if key != self._key:
            self._send_layout(arrays)
            self._key = key
        for view, array in zip(self._inputs, arrays, strict=True):
            np.copyto(view, array)
        number = 0
        if self._layout is not None and self._layout.block_size:
            self._block = self._next_block(self._layout.block_size)
            number = self._block.number
        self.connection.send(RUN_FORM.pack(RUN, self.run, number))
        self.is_running = True

    def _send_layout(self, arrays: Sequence[Array]) -> None:
        given = arrays[: len(self._signature.inputs)]
        lengths = self._signature.lengths(given)
        layout = Layout.of(arrays, [known_shape(port, lengths) for port in self._outputs])
        self._key = None
        fds = self._reserve(layout.size)
        shared = self._shared
        assert shared is not None
        self._blocks = []  # those in use are dropped with their arrays
        self.connection.send(LAYOUT + encoded({**layout.to_json(), "shared": shared.size}), fds)
        shared.close_fd()
        self._layout = layout
        self._inputs = [place.view(shared) for place in layout.inputs]
        self._results = [None if place is None or place.is_in_block else place.view(shared) for place in layout.outputs]

    def _reserve(self, size: int) -> list[int]:
        """Have memory of at least `size` bytes; returns its descriptor if it is new."""
        if self._shared is not None and self._shared.size >= size:
            return []
        self._shared = SharedMemory.created(max(4096, size))
        return [self._shared.fd]

    def _send_values(self, values: Sequence[Any]) -> None:
        packing = Packing(HEAD)
        described = [packing.described(plain(value)) for value in values]
        fds = self._reserve(packing.size)
        assert self._shared is not None
        packing.write(self._shared.bytes)
        message = {"run": self.run, "values": described, "shared": self._shared.size}
        self.connection.send(VALUES + encoded(message), fds)
        self._shared.close_fd()

    def _next_block(self, size: int) -> Block:
        kept = self._blocks
        while len(kept) > _KEPT_BLOCKS:
            self.connection.send(FORGET_FORM.pack(FORGET, kept.pop(0).number))
        try:
            block = kept.pop()
        except IndexError:
            self._block_number += 1
            block = Block(self._block_number, size)
            self.connection.send(BLOCK_FORM.pack(BLOCK, block.number, size), [block.shared.fd])
            block.shared.close_fd()
            return block
        block.shared.forget_writes()
        return block

    def result(self, wait: Callable[[], None]) -> tuple[list[Any], list[NodeProfile]]:
        """The outputs, as new arrays that the caller owns, and the profile of the nodes.

        `wait` as for `Connection.receive`. Raises the inference's error, `EOFError` if the other process has ended.
        """
        message, fds = self.connection.receive(wait)
        self.is_running = False
        block, self._block = self._block, None
        kind = message[:1]
        if kind == DONE and not fds:
            return self._laid_out(block), []
        if kind == OUTPUTS:
            return self._described(message, fds, block)
        for fd in fds:
            os.close(fd)
        if block is not None:
            self._blocks.append(block)
        raise rebuilt(decoded(message[1:])) if kind == ERROR else DeviceError("the other process sent no result")

    def _laid_out(self, block: Block | None, but: Mapping[int, Any] | None = None) -> list[Any]:
        layout, found, use = self._layout, [], None
        if block is not None:
            use = _Use(block, self._blocks)
        for index, view in enumerate(self._results):
            if but is not None and index in but:
                found.append(but[index])
            elif view is not None:
                found.append(view.copy())
            else:
                place = None if layout is None else layout.outputs[index]
                if place is None or block is None or use is None:
                    raise DeviceError(f"the other process sent no value of output {index}")
                found.append(_array_of(place, block, use))
        return found

    def _described(
        self, message: bytes, fds: Sequence[int], block: Block | None
    ) -> tuple[list[Any], list[NodeProfile]]:
        try:
            _, length = JSON_FORM.unpack_from(message)
            start = JSON_FORM.size + length
            content = decoded(message[JSON_FORM.size : start])
            if fds:
                shared = SharedMemory.received(fds[0], content["size"], is_private=True)
                shared.close_fd()
                view: _View = shared.view
            else:
                view = _inline(message[start:])
            but = {
                int(index): unpacked(each, lambda place: view(place.at, place.shape, _dtype(place)))
                for index, each in content["outputs"].items()
            }
            profile = [NodeProfile(*record) for record in content["profile"]]
        except EngineError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, struct.error) as e:
            raise DeviceError(f"the other process sent a malformed result: {e}") from e
        if not self._is_plain:
            return [but.get(index) for index in range(len(self._outputs))], profile
        return self._laid_out(block, but), profile

    def drop_result(self, wait: Callable[[], None]) -> None:
        """Take the result of an inference that nobody waits for any longer."""
        _, fds = self.connection.receive(wait)
        self.is_running = False
        for fd in fds:
            os.close(fd)
        block, self._block = self._block, None
        if block is not None:
            self._blocks.append(block)

    def wake(self) -> None:
        """Have the thread that waits for a result look whether it should. Any thread may call it."""
        with self._waking:
            if self.wake_fd >= 0:
                os.eventfd_write(self.wake_fd, 1)

    def woken(self) -> None:
        """Take note of `wake`."""
        with suppress(OSError):
            os.eventfd_read(self.wake_fd)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was not made completely
            self.close()

    def close(self) -> None:
        """Close the connection; the thread of the other process ends. Arrays keep their memory."""
        self.connection.close()
        with self._waking:
            wake_fd, self.wake_fd = self.wake_fd, -1
            if wake_fd >= 0:
                os.close(wake_fd)


def _array_of(place: Place, block: Block, use: _Use) -> Array:
    view = block.shared.view(place.at, place.shape, _dtype(place))
    return np.asarray(_Held(view, use)).view(_dtype(place)).reshape(place.shape)


def _dtype(place: Place) -> np.dtype[Any]:
    return ElementType.parse(place.element_type).numpy


def _inline(data: bytes) -> _View:
    memory = np.frombuffer(bytearray(data), np.uint8)

    def view(at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if min(shape, default=0) < 0 or at < 0 or at + size > memory.size:
            raise DeviceError("the other process described a tensor outside of its message")
        return memory[at : at + size].view(dtype).reshape(shape)

    return view
