"""onnxruntime as a device of the engine, so that the same server, queue and requests are measured with it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import onnxruntime

from engine.onnx import write_model
from engine.plugin_api import (
    API_VERSION,
    BlobReader,
    Config,
    ExecutableNetwork,
    Model,
    Plugin,
    QueryResult,
    Support,
    SyncInferRequest,
    UnsupportedError,
)


class PeerRequest(SyncInferRequest):
    def __init__(self, network: PeerNetwork) -> None:
        super().__init__(network)
        self._session = network.session

    def start_pipeline(self) -> None:
        names = [port.name for port in self.signature.inputs]
        for index, value in enumerate(self._session.run(None, dict(zip(names, self.inputs, strict=True)))):
            self.store_output(index, value)


class PeerNetwork(ExecutableNetwork):
    session: onnxruntime.InferenceSession

    def create_infer_request_impl(self) -> SyncInferRequest:
        return PeerRequest(self)


class PeerPlugin(Plugin):
    name = "ONNXRUNTIME"
    version = onnxruntime.__version__
    api_version = API_VERSION

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        cores, options = os.cpu_count() or 1, onnxruntime.SessionOptions()
        if config["PERFORMANCE_HINT"] == "THROUGHPUT":  # a session takes inferences of several threads
            config = config.merged({"NUM_STREAMS": cores})
        network = PeerNetwork(self, config, model)
        options.intra_op_num_threads = cores
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            write_model(model, path)
            network.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return network

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        raise UnsupportedError("onnxruntime has no blobs")

    def query_model(self, model: Model, config: Config) -> QueryResult:
        return QueryResult({node.friendly_name: Support.native() for node in model.ordered_nodes()})
