"""onnxruntime as a peer: all graph optimizations, the CPU provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from numpy.typing import NDArray

from engine.cli.peers.base import KNOWN, PRECISION, Call, Peer, import_peer, peer_error, require_known, threads_of
from engine.errors import PropertyError, UnsupportedError

_NAME: Final = "onnxruntime"
_ERRORS_ONLY: Final = 3


class OnnxRuntimePeer(Peer):
    """One session, which threads share; it computes in the types of the model."""

    def __init__(self, model: str | bytes, settings: Mapping[str, str]) -> None:
        require_known(_NAME, settings, KNOWN)
        if settings.get(PRECISION, "f32") not in ("", "f32"):
            raise PropertyError(
                f"{_NAME} computes in the types of the model, not in {PRECISION}={settings[PRECISION]}; drop it"
            )
        module = import_peer(_NAME)
        threads = threads_of(settings)
        options = module.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        options.graph_optimization_level = module.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        try:
            self._session = module.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as e:  # the module's own classes have no common base
            raise peer_error(_NAME, "load the model", e, UnsupportedError) from e
        self.version = str(module.__version__)
        self.configuration = {"intra_op_num_threads": threads, "graph_optimization_level": "ORT_ENABLE_ALL"}
        self.inputs = tuple(each.name for each in self._session.get_inputs())
        self.outputs = tuple(each.name for each in self._session.get_outputs())

    def make_call(self) -> Call:
        """A function that runs inferences in the one session, which all threads share."""
        session = self._session

        def call(inputs: Mapping[str, Any]) -> list[NDArray[Any]]:
            try:
                results: list[NDArray[Any]] = session.run(None, inputs)
            except Exception as e:  # as above
                raise peer_error(_NAME, "run the model", e) from e
            return results

        return call
