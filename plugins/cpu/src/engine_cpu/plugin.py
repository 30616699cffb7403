"""The CPU plugin: its properties, metrics and devices, compilation, and the import of blobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from engine.errors import MissingPartError, PropertyError, UnsupportedError
from engine.native import cores, cpu_features, default_isa, isas_within, packed_weight_formats, product_rates
from engine.plugin_api import BlobReader, Config, ExecutableNetwork, Plugin
from engine.properties import INFERENCE_NUM_THREADS, MEMORY_BUDGET, NUM_STREAMS, OWN_TARGET, REPEATABLE, TARGET, TARGETS
from engine.startup import paused_collector
from engine_cpu.blob_check import with_kernels, with_needs
from engine_cpu.instruction_sets import ARCHITECTURE
from engine_cpu.precision import why_not_bf16
from engine_cpu.properties import (
    ALLOW_REFERENCE,
    COMPILE_EFFORT,
    DYNAMIC_QUANTIZATION_GROUP_SIZE,
    EXECUTION_MODE_HINT,
    EXPORT_PACKED_WEIGHTS,
    INFERENCE_PRECISION_HINT,
    KV_CACHE_PRECISION,
    PLAN_CACHE_SIZE,
)
from engine_cpu.stored_network import StoredNetwork, has_program, why_no_program

if TYPE_CHECKING:
    from engine.plugin_api import BlobCheck, BlobManifest, Model, QueryResult


class CpuPlugin(Plugin):
    """The machine's cores as a device."""

    name = "CPU"
    version = "0.1.0"
    api_version = 2
    oldest_blob_version = "0.1"
    properties = (
        ALLOW_REFERENCE,
        COMPILE_EFFORT,
        DYNAMIC_QUANTIZATION_GROUP_SIZE,
        EXECUTION_MODE_HINT,
        EXPORT_PACKED_WEIGHTS,
        INFERENCE_PRECISION_HINT,
        KV_CACHE_PRECISION,
        MEMORY_BUDGET,
        PLAN_CACHE_SIZE,
        REPEATABLE,
        TARGET,
        TARGETS,
        OWN_TARGET,
    )

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """A new network from a model, which is not changed."""
        with paused_collector():
            from engine_cpu.network import CpuNetwork  # with all that compiles

            return CpuNetwork.compiled(self, _with_streams(config, _cores_of(config)), model, config)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A network from the sections that `CpuNetwork.export_sections` wrote: from its program, or otherwise its
        graph.
        """
        made_for = str(blob.manifest.config.get(TARGET.name, ""))
        if config[TARGET] != made_for:
            raise PropertyError(
                f"{blob.where} was compiled for {made_for or 'the machine that exported it'}, and {TARGET.name} is "
                f"{config[TARGET]!r}: an import does not compile; omit it"
            )
        config = _with_streams(config, cores())
        with paused_collector():
            if has_program(blob, config):
                return StoredNetwork(self, config, blob)
            try:
                from engine_cpu.network import CpuNetwork
            except MissingPartError as e:
                raise UnsupportedError(f"{blob.where} has no plans, only the graph: {why_no_program(blob)}; {e}") from e
            return CpuNetwork.imported(self, config, blob)

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """The support of each operation on this device."""
        from engine_cpu.query import query

        return query(model, allow_reference=config[ALLOW_REFERENCE])

    def metric(self, name: str, device_id: str) -> object:
        """The facts about the device; None leaves the declared default."""
        match name:
            case "FULL_DEVICE_NAME":
                return f"{cpu_features().model} ({default_isa()})"
            case "OPTIMIZATION_CAPABILITIES":
                is_in_bf16 = why_not_bf16(default_isa(), product_rates()) is None
                return ("FP32", "BF16", "INT8") if is_in_bf16 else ("FP32", "INT8")
            case TARGETS.name:
                from engine_cpu.machine import targets

                return targets()
            case OWN_TARGET.name:
                from engine_cpu.machine import own_target

                return str(own_target())
        return None

    def check_blob(self, manifest: BlobManifest, features: Mapping[str, str | Collection[str]]) -> BlobCheck:
        """Blobs with plain weights run everywhere. Where kernels or plans are for another machine or version, it would
        be faster to compile again.
        """
        needs = with_needs(manifest)
        return super().check_blob(needs, with_kernels(features, needs))

    def host_features(self, device_id: str) -> Mapping[str, str | Collection[str]]:
        """The instruction sets whose kernels can run here, and their packed weight formats."""
        return {
            "architecture": ARCHITECTURE,
            "isa": isas_within(default_isa()),
            "packed weights": packed_weight_formats(),
        }


def _cores_of(config: Config) -> int:
    """The cores of the machine that a network is compiled for. Raises `TargetError`."""
    if not config[TARGET]:
        return cores()
    from engine_cpu.machine import Machine

    return Machine.of(config).cores


def _with_streams(config: Config, available: int) -> Config:
    """For throughput, one stream per core or thread that the network may use, unless the user sets the number."""
    if config["PERFORMANCE_HINT"] != "THROUGHPUT" or config[NUM_STREAMS]:
        return config
    return config.merged({NUM_STREAMS.name: min(available, config[INFERENCE_NUM_THREADS] or available)})
