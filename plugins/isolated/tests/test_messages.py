"""What the other process sends is not believed: messages are bytes and JSON, and memory is checked before its use."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

import numpy as np
import pytest
from engine_isolated.channel import DONE, ERROR, JSON_FORM, OUTPUTS, Channel
from engine_isolated.failures import described, rebuilt
from engine_isolated.layout import Place, unpacked
from engine_isolated.memory import SharedMemory, new_memory
from engine_isolated.wire import Connection, encoded

from engine.errors import DeviceError, EngineError, InputError, UnsupportedError
from engine.ir import PartialShape, TensorType, f32
from engine.plugin_api import Port, Signature


def channel() -> tuple[Channel, Connection]:
    """A channel of a network with one input and one output, and the other end of it."""
    ours, theirs = Connection.pair()
    port = [Port(name, TensorType(f32, PartialShape([2]))) for name in "xy"]
    return Channel(ours, 1, Signature(port[:1], port[1:], "network")), Connection(theirs)


def nothing() -> None:
    """What waits for a message that has come."""


def outputs(content: Any, data: bytes = b"") -> bytes:
    text = encoded(content)
    return JSON_FORM.pack(OUTPUTS, len(text)) + text + data


TENSOR = {"tensor": ["f32", [2], 0, False]}


@pytest.mark.parametrize(
    "message",
    [
        b"", b"?", DONE[:0], ERROR + b"{", ERROR + b"[1]", OUTPUTS, OUTPUTS + b"\xff\xff\xff\xff{}",
        outputs([]), outputs({}), outputs({"outputs": {"x": None}, "profile": [], "size": 0}),
        outputs({"outputs": {"0": TENSOR}, "profile": [], "size": 0}),
        outputs({"outputs": {"0": {"tensor": ["f32", [2], -8, False]}}, "profile": [], "size": 0}, bytes(64)),
        outputs({"outputs": {"0": {"tensor": ["f32", [-2, -1], 0, False]}}, "profile": [], "size": 0}, bytes(64)),
        outputs({"outputs": {"0": {"tensor": ["f32", [2**70], 0, False]}}, "profile": [], "size": 0}, bytes(64)),
        outputs({"outputs": {"0": {"tensor": ["string", [2], 0, False]}}, "profile": [], "size": 0}, bytes(64)),
        outputs({"outputs": {"0": {"tensor": ["f33", [2], 0, False]}}, "profile": [], "size": 0}, bytes(64)),
        outputs({"outputs": {"0": {"pickle": "gASV"}}, "profile": [], "size": 0}),
        outputs({"outputs": {"0": {"map": [1]}}, "profile": [], "size": 0}),
        outputs({"outputs": {"0": {"strings": ["a"], "shape": [7]}}, "profile": [], "size": 0}),
        outputs({"outputs": {"0": TENSOR}, "profile": [[1]], "size": 0}, bytes(64)),
    ],
    ids=repr,
)  # fmt: skip
def test_a_malformed_result_is_an_error(message: bytes) -> None:
    ours, theirs = channel()
    ours.begin([np.zeros(2, np.float32)])
    theirs.send(message)
    with pytest.raises(EngineError):
        ours.result(nothing)


def test_a_result_of_unknown_shape_in_a_message() -> None:
    ours, theirs = channel()
    ours.begin([np.zeros(2, np.float32)])
    theirs.send(outputs({"outputs": {"0": TENSOR}, "profile": [], "size": 8}, struct.pack("2f", 1, 2)))
    (found,), profile = ours.result(nothing)
    assert found.tolist() == [1, 2]
    assert profile == []
    found[0] = 3  # the caller's own memory


def test_memory_that_could_shrink_is_refused() -> None:
    fd = new_memory()
    os.ftruncate(fd, 4096)
    with pytest.raises(DeviceError, match="whose size can change"):
        SharedMemory.received(fd, 4096)
    made = SharedMemory.created(4096)
    with pytest.raises(PermissionError):
        os.ftruncate(made.fd, 0)
    with pytest.raises(DeviceError, match="instead of 8192"):
        SharedMemory.received(os.dup(made.fd), 8192)
    reader, writer = os.pipe()
    os.close(writer)
    with pytest.raises(DeviceError, match="something else than shared memory"):
        SharedMemory.received(reader, 1)


def test_a_tensor_outside_of_its_memory_is_refused() -> None:
    made = SharedMemory.created(64)
    for place in (Place("f32", (17,), 0), Place("f32", (1,), 64), Place("f32", (1,), -4), Place("u8", (2**62,), 0)):
        with pytest.raises(DeviceError, match="outside of shared memory"):
            unpacked({"tensor": place.to_json()}, lambda place: place.view(made))


def test_errors_keep_class_message_and_notes() -> None:
    error = UnsupportedError("node `a`: no kernel")
    error.add_note("see the guide")
    again = rebuilt(described(error))
    assert type(again) is UnsupportedError
    assert str(again) == str(error)
    assert again.__notes__ == ["see the guide"]

    class Own(InputError):
        """A plugin's own error."""

    assert type(rebuilt(described(Own("x")))) is InputError
    assert str(rebuilt(described(KeyError("x")))) == "KeyError: 'x'"
    for malformed in ({"kind": "MAX_MESSAGE", "message": "m"}, {"kind": "Exception"}, [], None):
        assert type(rebuilt(malformed)) is DeviceError


def test_long_messages_and_descriptors_arrive_in_order() -> None:
    ours, theirs = Connection.pair()
    other = Connection(theirs)
    made = [SharedMemory.created(64), SharedMemory.created(128)]
    ours.send(b"plain")
    ours.send(b"one", [made[0].fd])
    ours.send(b"", [made[1].fd, made[0].fd])
    assert other.receive() == (b"plain", [])
    for message, sizes in ((b"one", [64]), (b"", [128, 64])):
        found, fds = other.receive()
        assert found == message
        assert [os.fstat(fd).st_size for fd in fds] == sizes
        for fd in fds:
            os.close(fd)
    ours.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    long = bytes(1 << 18)
    ours.send(long)
    assert other.receive() == (long, [])
    ours.close()
    with pytest.raises(EOFError):
        other.receive()
