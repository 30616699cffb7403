"""The executable network: batches of requests on another device."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields

from engine.errors import BlobCorruptError, BlobFormatError, BlobIncompatibleError
from engine.plugin_api import (
    BlobReader,
    BlobWriter,
    Config,
    ExecutableNetwork,
    InlineExecutor,
    MemoryForecast,
    Model,
    NodeCounts,
    Pipeline,
    Plugin,
    Port,
    SyncInferRequest,
)
from engine.properties import EXECUTION_SUMMARY, OPTIMAL_NUMBER_OF_INFER_REQUESTS
from engine.runtime.lifecycle import ForkSafeLock
from engine_batch.batched_model import BatchedModel
from engine_batch.collector import Collector, Item
from engine_batch.networks import Networks
from engine_batch.properties import (
    BATCH_CHECK,
    BATCH_RUNS,
    BATCH_SIZES,
    BATCH_STATISTICS,
    BATCH_TIMEOUT,
    MAX_BATCH_SIZE,
    OWN_METRICS,
    PARTIAL_BATCHES,
)
from engine_batch.request import Arrival, BatchInferRequest
from engine_batch.target import Target

_SIZES = "sizes"
_FULL = "full"
_REST = "rest"


class BatchNetwork(ExecutableNetwork):
    """Has the inputs and outputs of the user's model; runs its requests in batches."""

    metrics = OWN_METRICS
    takes_overrides = False  # requests of one batch may give different values

    @classmethod
    def compiled(cls, plugin: Plugin, config: Config, model: Model, target: Target) -> BatchNetwork:
        """Networks for full batches and for others, whose requests were checked not to affect each other."""
        network = cls(plugin, config, model)
        networks = Networks.compiled(plugin.core, BatchedModel.of(model, target.size), target)
        is_checked = not config[BATCH_CHECK.name] or networks.check_random(network.inputs)
        network._connect(networks, target.size, is_checked)
        return network

    @classmethod
    def imported(cls, plugin: Plugin, config: Config, blob: BlobReader, target: Target) -> BatchNetwork:
        """The networks of the sections of `export_sections`.

        Raises `BlobIncompatibleError` if the configuration states another size of batches, and the errors of importing
        the networks.
        """
        network = cls(plugin, config, blob.manifest)
        try:
            sizes = json.loads(bytes(blob.section(_SIZES)))
            unit, rows, size = sizes["unit"], int(sizes["rows"]), int(sizes["size"])
            is_one_by_one, is_checked = bool(sizes["is_one_by_one"]), bool(sizes["is_checked"])
            if (unit is not None and type(unit) is not int) or not 1 <= size <= rows:
                raise ValueError("the sizes contradict each other")
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise BlobFormatError(f"the section with the sizes of batches is malformed: {e}") from e
        if target.is_size_stated and target.size != size:
            raise BlobIncompatibleError(
                f"the blob is for batches of {size} requests, not of {target.size}; import it as {plugin.name}, or "
                "compile the model again"
            )
        full, rest = (
            plugin.core.import_model(blob.nested(section), target.device, target.config) for section in (_FULL, _REST)
        )
        for ports, others in ((network.inputs, full.inputs), (network.outputs, full.outputs)):
            _require_equal(ports, others)
        for ports, others in ((network.inputs, rest.inputs), (network.outputs, rest.outputs)):
            _require_equal(ports, others)
        network._connect(Networks(unit, rows, full, rest, is_one_by_one), size, is_checked)
        return network

    def _connect(self, networks: Networks, size: int, is_checked: bool) -> None:
        self._networks, self._size = networks, size
        self._inline = InlineExecutor()
        self._threads = int(networks.full.get_metric(OPTIMAL_NUMBER_OF_INFER_REQUESTS.name))
        self._runner = _Runner(networks, is_checked)
        seconds = self.config[BATCH_TIMEOUT.name] / 1e3
        self._collector = Collector(self.signature.network, networks.rows, seconds, self._runner.run, self._threads)
        self.graph = networks.full
        self.loaded_from_cache = networks.full.loaded_from_cache and networks.rest.loaded_from_cache

    def parts(self) -> Mapping[str, ExecutableNetwork]:
        """The network for full batches, and the one for the rest unless it is the same."""
        networks = self._networks
        rest = {} if networks.rest is networks.full else {"rest": networks.rest}
        return {"full": networks.full, **rest}

    def node_counts(self) -> NodeCounts:
        """The counts of one of the networks, which are made of one model."""
        summary = self._networks.full.get_metric(EXECUTION_SUMMARY.name)
        return NodeCounts(*(summary[each.name] for each in fields(NodeCounts)))

    def create_infer_request_impl(self) -> SyncInferRequest:
        """Make a request, which joins the batches of this network."""
        return BatchInferRequest(self, self._collector)

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """A request joins a batch in the caller's thread, and ends in the thread that ran it."""
        assert isinstance(request, BatchInferRequest)
        arrival = Arrival(request, self._collector)
        return [
            (self._inline, request.start_pipeline),
            (arrival, request.wait_pipeline),
            (arrival, request.infer_postprocess),
        ]

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the sizes, and the blobs of both networks. Raises `UnsupportedError` if the device cannot export."""
        networks = self._networks
        sizes = {
            "unit": networks.unit,
            "rows": networks.rows,
            "size": self._size,
            "is_one_by_one": networks.is_one_by_one,
            "is_checked": self._runner.is_checked,
        }
        writer.add_section(_SIZES, json.dumps(sizes).encode())
        for section, network in ((_FULL, networks.full), (_REST, networks.rest)):
            stream = io.BytesIO()
            network.export_model(stream)
            writer.add_section(section, stream.getbuffer())

    def metric(self, name: str) -> object:
        """The metrics of batches; twice as many requests as a batch has collect one while another one runs."""
        match name:
            case MAX_BATCH_SIZE.name:
                return self._size
            case BATCH_STATISTICS.name:
                counts = self._collector.statistics
                return {kind: counts[kind] for kind in ("full", "partial", "repeated", "requests")}
            case BATCH_SIZES.name:
                return {str(size): count for size, count in list(self._collector.sizes.items())}
            case BATCH_RUNS.name:
                return {str(rows): list(run) for rows, run in self._collector.runs.items()}
            case PARTIAL_BATCHES.name:
                return "one by one" if self._networks.is_one_by_one else "one network"
            case "EXECUTION_DEVICES":
                return self._networks.full.get_metric(name)
            case OPTIMAL_NUMBER_OF_INFER_REQUESTS.name:
                return 2 * self._size * self._threads
        return None

    def memory(self) -> dict[str, int]:
        """The sum of what both networks hold."""
        total: Counter[str] = Counter()
        for network in (self._networks.full, self._networks.rest):
            total.update(network.memory_statistics())
        return dict(total)

    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        """Both networks; the requests of a batch have inputs and outputs of their own beside the batch's."""
        networks = self._networks
        alone = shapes if networks.is_one_by_one else [(max(1, networks.rows - 1), *shape[1:]) for shape in shapes]
        parts = {"full": networks.full.forecast_memory([(networks.rows, *shape[1:]) for shape in shapes])}
        if networks.rest is not networks.full:
            parts["rest"] = networks.rest.forecast_memory(alone)
        full = parts["full"]
        passed = full.inputs + full.outputs
        return MemoryForecast.of_parts(parts, inputs=full.inputs, outputs=full.outputs, passed=passed)

    def release_caches(self) -> None:
        """Have the networks release their memory."""
        self._networks.release()


class _Runner:
    """Runs batches, and checks the first one with different requests if none could be checked at random."""

    def __init__(self, networks: Networks, is_checked: bool) -> None:
        self.is_checked = is_checked
        self._networks = networks
        self._lock = ForkSafeLock()

    def run(self, items: Sequence[Item]) -> None:
        """Raises `UnsupportedError` if requests affect each other."""
        if not self.is_checked and len(items) > 1:
            with self._lock:
                self.is_checked = self._networks.check(items) or self.is_checked
        self._networks.run(items)


def _require_equal(ports: Sequence[Port], others: Sequence[Port]) -> None:
    if [(p.name, p.element_type) for p in ports] != [(p.name, p.element_type) for p in others]:
        raise BlobCorruptError("the inputs and outputs of the blob do not match the networks in it")
