"""The BATCH plugin, which runs requests of several callers as one batch."""

from __future__ import annotations

from engine.ir import Constant, Node
from engine.plugin_api import (
    BlobReader,
    Config,
    ExecutableNetwork,
    Model,
    Plugin,
    QueryResult,
    RefusalCause,
    Support,
    SupportLevel,
    UnsupportedError,
)
from engine_batch.properties import OWN_PROPERTIES
from engine_batch.target import Target

# Networks are imported when they are first needed, so that listing devices does not wait for it.


class BatchPlugin(Plugin):
    """Another device, on which requests run in batches."""

    name = "BATCH"
    version = "0.1.0"
    api_version = 2
    oldest_blob_version = "0.1"
    properties = OWN_PROPERTIES
    caches_parts = True

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """A network that collects requests. Raises `UnsupportedError` for a model without a batch."""
        from engine_batch.network import BatchNetwork

        target = Target.of(self.name, self.core, config)
        try:
            return BatchNetwork.compiled(self, config, model, target)
        except UnsupportedError as e:
            answer = self.core.query_model(model, target.device, target.config)
            for name, support in answer.at(SupportLevel.REFUSED).items():  # whatever the batch, and of more help
                raise UnsupportedError(f"{target.device} refuses `{name}`: {support.reason}") from e
            raise

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A network from the sections that `BatchNetwork.export_sections` wrote."""
        from engine_batch.network import BatchNetwork

        return BatchNetwork.imported(self, config, blob, Target.of(self.name, self.core, config))

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """The answer of the device for a full batch; all operations are refused if the model has no batch."""
        from engine_batch.batched_model import BatchedModel

        target = Target.of(self.name, self.core, config)
        answer = self.core.query_model(model, target.device, target.config)
        if not answer.is_supported:
            return answer
        try:
            full = BatchedModel.of(model, target.size).full
        except UnsupportedError as e:
            refused = Support.refused(RefusalCause.SHAPE, str(e))
            return QueryResult(dict.fromkeys(answer.nodes, refused))
        batched = self.core.query_model(full, target.device, target.config)
        # Nodes without a name of their own have others in a copy.
        pairs = zip(_operations(model), _operations(full), strict=True)
        names = {theirs.friendly_name: ours.friendly_name for ours, theirs in pairs}
        return QueryResult({names[name]: support for name, support in batched.nodes.items()})

    def metric(self, name: str, device_id: str) -> object:
        """The facts about the device; None leaves the declared default."""
        return "Requests in batches on another device" if name == "FULL_DEVICE_NAME" else None


def _operations(model: Model) -> list[Node]:
    return [node for node in model.ordered_nodes() if not isinstance(node, Constant)]
