"""openvino as a peer: its CPU device, with arrays that are shared with the request where possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from numpy.typing import NDArray

from engine.cli.peers.base import HINT, KNOWN, Call, Peer, import_peer, peer_error, require_known
from engine.errors import UnsupportedError

_NAME: Final = "openvino"


class OpenVinoPeer(Peer):
    """A compiled model; each call has a request."""

    def __init__(self, model: str | bytes, settings: Mapping[str, str]) -> None:
        require_known(_NAME, settings, KNOWN)  # openvino's own names
        module = import_peer(_NAME)
        config = {HINT: "LATENCY", **{key: value for key, value in settings.items() if value}}
        try:
            core = module.Core()
            self._network = core.compile_model(core.read_model(model), "CPU", config)
            self.inputs = tuple(port.get_any_name() for port in self._network.inputs)
            self.outputs = tuple(port.get_any_name() for port in self._network.outputs)
        except Exception as e:  # RuntimeError, and the module's own classes
            raise peer_error(_NAME, "load the model", e, UnsupportedError) from e
        self.version = str(module.__version__)
        self.configuration = config

    def make_call(self) -> Call:
        """A function that runs inferences by a request of its own, since a request is for one thread."""
        request = self._network.create_infer_request()

        def call(inputs: Mapping[str, Any]) -> list[NDArray[Any]]:
            try:
                results = request.infer(dict(inputs), share_inputs=True, share_outputs=True)
            except Exception as e:  # as above
                raise peer_error(_NAME, "run the model", e) from e
            return list(results.values())

        return call
