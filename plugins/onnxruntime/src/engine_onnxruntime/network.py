"""The executable network: a session, and the model that it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from engine.lowering import GraphNetwork, read_graph
from engine.passes.runtime_info import is_operation
from engine.plugin_api import BlobManifest, BlobReader, BlobWriter, Config, Features, Model, Plugin, SyncInferRequest
from engine_onnxruntime.compiled import read_compiled, write_compiled
from engine_onnxruntime.narrow import has_narrow_ports, run_by_address
from engine_onnxruntime.properties import EXPORT_COMPILED, TRUST_BLOB
from engine_onnxruntime.request import OnnxRuntimeRequest, Run, run_arrays
from engine_onnxruntime.runtime import Session, SessionPlan, load_runtime


class OnnxRuntimeNetwork(GraphNetwork[Plugin]):
    """A model in a session, which all requests share. It is exported as its graph."""

    session: Session
    plan: SessionPlan
    run: Run
    nodes: Sequence[str] = ()

    @classmethod
    def compiled(cls, plugin: Plugin, config: Config, model: Model, plan: SessionPlan) -> Self:
        """Load the user's model. Raises `UnsupportedError` if the runtime refuses it."""
        return cls._made(plugin, config, model, model.clone(), plan)

    @classmethod
    def imported(cls, plugin: Plugin, config: Config, blob: BlobReader, plan: SessionPlan) -> Self:
        """Load an exported model."""
        is_trusted = config[TRUST_BLOB.name] or blob.is_trusted
        compiled = read_compiled(blob, plan) if is_trusted else None
        return cls._made(plugin, config, blob.manifest, read_graph(blob), plan, compiled)

    @classmethod
    def _made(
        cls,
        plugin: Plugin,
        config: Config,
        source: Model | BlobManifest,
        graph: Model,
        plan: SessionPlan,
        session: Session | None = None,
    ) -> Self:
        if plan.streams > max(config["NUM_STREAMS"], 1):  # the executor of requests has as many threads
            config = config.merged({"NUM_STREAMS": plan.streams})
        network = cls(plugin, config, source)
        network.graph, network.plan = graph, plan
        network.run = run_by_address if has_narrow_ports(network.signature) else run_arrays
        network.session = session or plan.open(graph)
        if network.is_profiling:
            network.nodes = [node.friendly_name for node in graph.ordered_nodes() if is_operation(node)]
        return network

    def create_infer_request_impl(self) -> SyncInferRequest:
        """One more request; sessions take inferences of several threads at once."""
        return OnnxRuntimeRequest(self, self.session, self.run, self.nodes)

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the graph and, if it was asked for, the compiled form."""
        super().export_sections(writer)
        if self.config[EXPORT_COMPILED.name]:
            write_compiled(writer, self.graph, self.plan)

    def requirements(self) -> Features:
        """The version of the runtime, whose answers and kernels another one need not have, and the provider."""
        return {"onnxruntime": str(load_runtime().__version__), "execution provider": self.plan.device_id}

    def metric(self, name: str) -> object:
        """The network's metrics; None leaves the declared default."""
        return self.plan.streams if name == "OPTIMAL_NUMBER_OF_INFER_REQUESTS" else None
