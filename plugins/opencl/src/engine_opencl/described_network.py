"""`DescribedNetwork`: a network for a device that is described, and need not be on this machine."""

from __future__ import annotations

from engine.errors import TargetError
from engine.ir import Model
from engine.lowering import GraphNetwork, read_graph
from engine.lowering.tuning import write_choices
from engine.plugin_api import BlobReader, BlobWriter, Config, Plugin, SyncInferRequest
from engine.properties import TARGET
from engine_opencl.compiler import ADVICE
from engine_opencl.description import described_facts
from engine_opencl.network import CHOICES, COMPILER, MODE, PRECISION, is_accurate, mode_text
from engine_opencl.properties import COMPILE_EFFORT, INFERENCE_PRECISION_HINT
from engine_opencl.transform import prepare_model


class DescribedNetwork(GraphNetwork):
    """The graph as it is transformed for the device, which has kernels for all nodes. It is there to be exported.

    Its blob has no compiled programs: an import generates the kernels' source for the device, and compiles it.
    """

    mode: str
    """Whether it is for PERFORMANCE or ACCURACY."""

    @classmethod
    def compiled(cls, plugin: Plugin, config: Config, model: Model) -> DescribedNetwork:
        """Transform `model` for the device that TARGET describes. Uses no OpenCL runtime.

        Raises `TargetError`, `UnsupportedError` for nodes that the device cannot run.
        """
        network = cls(plugin, config, model)
        facts = described_facts(config[TARGET.name])
        if config[COMPILE_EFFORT] != COMPILE_EFFORT.default:
            raise TargetError(
                f"OPENCL: {COMPILE_EFFORT.name} is {config[COMPILE_EFFORT]}, and {TARGET.name} describes a device: "
                "kernels can be measured on the device only; omit one of them"
            )
        network.mode = mode_text(is_accurate=is_accurate(config))
        prepared = prepare_model(model, facts, config[INFERENCE_PRECISION_HINT])
        prepared.require_kernels("OPENCL", ADVICE)
        network.graph = prepared.graph
        return network

    @classmethod
    def imported(cls, plugin: Plugin, config: Config, blob: BlobReader) -> DescribedNetwork:
        """The network of a blob that this machine's cache has."""
        network = cls(plugin, config, blob.manifest)
        network.mode = bytes(blob.section(MODE)).decode(errors="replace")
        network.graph = read_graph(blob)
        return network

    def create_infer_request_impl(self) -> SyncInferRequest:
        """Raise `TargetError`."""
        facts = described_facts(self.config[TARGET.name])
        raise TargetError(
            f"{self.signature.network} was compiled for {facts.name} ({facts.driver}) as it was described, and is not "
            "on a device: export the network, and import it on the machine with the device"
        )

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the sections that `OpenclNetwork.imported` reads."""
        super().export_sections(writer)
        facts = described_facts(self.config[TARGET.name])
        writer.add_section(PRECISION, self.config[INFERENCE_PRECISION_HINT].encode())
        writer.add_section(MODE, self.mode.encode())
        writer.add_section(COMPILER, f"{facts.name} / {facts.driver}".encode())
        writer.add_section(CHOICES, write_choices({}))
