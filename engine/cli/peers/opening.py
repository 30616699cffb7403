"""`open_peer`: a model in another engine, by the engine's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.cli.peers.base import Peer
from engine.cli.peers.onnxruntime import OnnxRuntimePeer
from engine.cli.peers.openvino import OpenVinoPeer
from engine.errors import UnsupportedError

PEERS: Final = ("onnxruntime", "openvino")


def open_peer(name: str, model: str | bytes, settings: Mapping[str, str]) -> Peer:
    """Load a model, from its path or its bytes, in the engine `name` of `PEERS`.

    `settings` are properties of this engine; a peer knows the number of threads and of streams (inferences in flight,
    among which threads are divided), the performance hint, and openvino the precision hint.
    Raises `PropertyError` for another, and `UnsupportedError` if the peer is not installed or cannot load the model.
    """
    if name == "onnxruntime":
        return OnnxRuntimePeer(model, settings)
    if name == "openvino":
        return OpenVinoPeer(model, settings)
    raise UnsupportedError(f"unknown engine {name!r}; expected one of {', '.join(PEERS)}")
