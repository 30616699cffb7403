"""Other engines on the CPU, onnxruntime and openvino, behind one interface: to measure beside them, and as an oracle.

Each is imported only when it is opened, and is an extra of the SDK.
"""

from engine.cli.peers.base import KNOWN, Peer
from engine.cli.peers.opening import PEERS, open_peer

__all__ = ["KNOWN", "PEERS", "Peer", "open_peer"]
