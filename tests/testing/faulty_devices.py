"""Devices with one fault each, to prove that the behaviour suite finds it. Each is TEMPLATE but for that fault."""

from __future__ import annotations

import io
import math
import re
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from engine_template import TemplatePlugin
from engine_template.context import TemplateContext, TemplateTensor
from engine_template.network import TemplateNetwork
from engine_template.request import TemplateInferRequest

from engine.ops.interruption import interruptible
from engine.plugin_api import (
    CONFIG,
    BlobReader,
    BlobWriter,
    Config,
    ElementType,
    ExecutableNetwork,
    Model,
    Pipeline,
    PlacedSubgraph,
    PlacementReport,
    Property,
    QueryResult,
    RefusalCause,
    RemoteContext,
    RemoteTensor,
    Support,
    SyncInferRequest,
    UnsupportedError,
)


class _Network(TemplateNetwork):
    request_class: ClassVar[type[TemplateInferRequest]] = TemplateInferRequest

    def create_infer_request_impl(self) -> SyncInferRequest:
        return self.request_class(self, self.program)


class _Device(TemplatePlugin):
    network_class: ClassVar[type[TemplateNetwork]] = _Network

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        return self.network_class.compiled(self, config, model)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        return self.network_class.imported(self, config, blob)


FAULTY: dict[str, type[_Device]] = {}


def device(cls: type[_Device]) -> type[_Device]:
    """Name the device after its class, and let an entry point find it under that name."""
    cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()
    FAULTY[cls.name] = globals()[cls.name] = cls
    return cls


def request_fault(cls: type[TemplateInferRequest]) -> type[TemplateInferRequest]:
    """Make a device whose requests have the fault."""
    network = type("Network", (_Network,), {"request_class": cls})
    device(type(cls.__name__, (_Device,), {"network_class": network}))
    return cls


def network_fault(cls: type[_Network]) -> type[_Network]:
    """Make a device whose networks have the fault."""
    device(type(cls.__name__, (_Device,), {"network_class": cls}))
    return cls


# -- requests -----------------------------------------------------------------------------------------------


@request_fault
class TakesTensorsByTheHost(TemplateInferRequest):
    """Right, but each tensor on the device makes a trip through the host."""

    def infer_preprocess(self) -> None:
        self.inputs = [value.to_host() if isinstance(value, RemoteTensor) else value for value in self.inputs]
        super().infer_preprocess()


@request_fault
class WritesTensorsEarly(TemplateInferRequest):
    """The kernels write into the tensor of an output while they still read an input that lies there."""

    def start_pipeline(self) -> None:
        for index, output in enumerate(self.signature.outputs):
            tensor = self.remote_output(index, output.shape.get_shape())
            if isinstance(tensor, TemplateTensor):
                tensor.device_array[...] = 0
        super().start_pipeline()


@request_fault
class KeepsTensors(TemplateInferRequest):
    def infer_preprocess(self) -> None:
        self.kept = [*getattr(self, "kept", []), *self.inputs]
        super().infer_preprocess()


@request_fault
class WritesToTensorsOfTheLastInference(TemplateInferRequest):
    """As a device whose kernels stay bound to memory that was replaced."""

    def infer_postprocess(self) -> None:
        tensors: dict[int, TemplateTensor] = getattr(self, "tensors", {})
        results = [self.memory[slot] for slot in self.program.outputs]
        super().infer_postprocess()
        for index, value in enumerate(results):
            if isinstance(self.get_output_tensor(index), TemplateTensor):
                tensors[index] = self.get_output_tensor(index)
            elif index in tensors:
                tensors[index].device_array[...] = value
        self.tensors = tensors


@request_fault
class SwapsOutputs(TemplateInferRequest):
    def infer_postprocess(self) -> None:
        self.program.outputs.reverse()
        super().infer_postprocess()
        self.program.outputs.reverse()


@request_fault
class ReturnsItsBuffers(TemplateInferRequest):
    def infer_postprocess(self) -> None:
        self.buffers: dict[int, Any] = getattr(self, "buffers", {})
        for index, slot in enumerate(self.program.outputs):
            value = self.memory[slot]
            buffer = self.buffers.setdefault(index, np.empty_like(value))
            np.copyto(buffer, value)
            self.store_output(index, buffer, copy=False)


@request_fault
class ReturnsItsMemory(TemplateInferRequest):
    def infer_postprocess(self) -> None:
        for index, slot in enumerate(self.program.outputs):
            self.store_output(index, self.memory[slot], copy=False)


@request_fault
class WritesToInputs(TemplateInferRequest):
    def start_pipeline(self) -> None:
        super().start_pipeline()
        for value in self.inputs:
            value[...] = 0


@request_fault
class RemembersTheFirstShape(TemplateInferRequest):
    def infer_preprocess(self) -> None:
        super().infer_preprocess()
        lengths = [len(value) for value in self.inputs]
        self.lengths = getattr(self, "lengths", lengths)
        for slot, length in zip(self.program.inputs, self.lengths, strict=True):
            self.memory[slot] = self.memory[slot][:length]


@request_fault
class StaysBusyAfterCancelling(TemplateInferRequest):
    def infer_preprocess(self) -> None:
        assert not getattr(self, "is_running", False), "the device runs already"
        self.is_running = True
        super().infer_preprocess()

    def infer_postprocess(self) -> None:
        self.is_running = False
        super().infer_postprocess()


@request_fault
class HearsNothingInLoops(TemplateInferRequest):
    """Goes on in a loop after it was cancelled, though not for ever."""

    rounds = 0

    def start_pipeline(self) -> None:
        self.rounds = 0
        with interruptible(self.count):
            self._run_operations()

    def count(self) -> None:
        self.rounds += 1
        assert self.rounds < 100_000, "it went round too often"


@request_fault
class GivesStaleOutputs(TemplateInferRequest):
    """After an aborted inference, the next one returns the values that the aborted one had computed."""

    def abort_pipeline(self) -> None:
        self.stale = list(self.memory)

    def infer_postprocess(self) -> None:
        if any(value is not None for value in getattr(self, "stale", [])):
            self.memory, self.stale = self.stale, []
        super().infer_postprocess()


@request_fault
class SharesMemory(TemplateInferRequest):
    """All requests of a network use one table of memory."""

    def infer_preprocess(self) -> None:
        self.memory = self.program.memory
        for slot, value in zip(self.program.inputs, self.inputs, strict=True):
            self.memory[slot] = value
        time.sleep(0.002)


@request_fault
class RecordsNoNodes(TemplateInferRequest):
    def record_node(self, *_: Any) -> None:
        pass


@request_fault
class RecordsNodesTwice(TemplateInferRequest):
    def record_node(self, *recorded: Any) -> None:
        super().record_node(*recorded)
        super().record_node(*recorded)


@request_fault
class RecordsWrongTimes(TemplateInferRequest):
    def record_node(self, name: str, op_type: str, status: str, start_ns: int, end_ns: int) -> None:
        super().record_node(name, op_type, status, start_ns // 1000, end_ns // 1000)


# -- networks -----------------------------------------------------------------------------------------------


@network_fault
class ForgetsAStage(_Network):
    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        host = self.task_executor
        return [(host, request.infer_preprocess), (host, request.infer_postprocess)]


@network_fault
class PutsStagesInWrongOrder(_Network):
    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        first, second, *rest = super().pipeline(request)
        return [second, first, *rest]


@network_fault
class ExportsAReference(_Network):
    """Its blob is good only in the process that wrote it."""

    exported: ClassVar[dict[str, Model]] = {}

    def export_sections(self, writer: BlobWriter) -> None:
        self.exported[str(id(self))] = self.graph
        writer.add_section("reference", str(id(self)).encode())

    @classmethod
    def imported(cls, plugin: Any, config: Config, blob: BlobReader) -> TemplateNetwork:
        network = cls(plugin, config, blob.manifest)
        network.load(cls.exported[bytes(blob.section("reference")).decode()])
        return network


@network_fault
class ExportsNoWeights(_Network):
    def load(self, graph: Model) -> None:
        super().load(graph)
        if not hasattr(self, "compiled_here"):
            for slot in self.program.constants:
                self.program.memory[slot] = np.zeros_like(self.program.memory[slot])

    @classmethod
    def compiled(cls, plugin: Any, config: Config, model: Model) -> TemplateNetwork:
        network = super().compiled(plugin, config, model)
        assert isinstance(network, ExportsNoWeights)
        network.compiled_here = True
        network.program.fill_weights(network.graph)
        return network

    compiled_here: bool


@network_fault
class ImportsItsPartsAsBytes(_Network):
    """So the signature of its blob does not cover what the blob contains."""

    def export_sections(self, writer: BlobWriter) -> None:
        super().export_sections(writer)
        inner = BlobWriter(self._manifest({}))
        super().export_sections(inner)
        stream = io.BytesIO()
        inner.write(stream)
        writer.add_section("inner", stream.getvalue())

    @classmethod
    def imported(cls, plugin: Any, config: Config, blob: BlobReader) -> TemplateNetwork:
        if "inner" in blob.section_names:
            plugin.core.import_model(bytes(blob.section("inner")), plugin.name)
        return super().imported(plugin, config, blob)


@network_fault
class CompilesWhenFirstUsed(_Network):
    """So it sees what the application has done to its model meanwhile."""

    @classmethod
    def compiled(cls, plugin: Any, config: Config, model: Model) -> TemplateNetwork:
        network = cls(plugin, config, model)
        network.graph = model
        return network

    def create_infer_request_impl(self) -> SyncInferRequest:
        self.load(self.graph)
        return super().create_infer_request_impl()


# -- plugins ------------------------------------------------------------------------------------------------


@device
class RefusesEverything(_Device):
    def query_model(self, model: Model, config: Config) -> QueryResult:
        refused = Support.refused(RefusalCause.OP, "this device is for decoration")
        return QueryResult(dict.fromkeys(super().query_model(model, config).nodes, refused))

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        raise UnsupportedError("this device is for decoration")


@device
class RefusesWithoutReason(RefusesEverything):
    def query_model(self, model: Model, config: Config) -> QueryResult:
        answer = super().query_model(model, config)
        return QueryResult(dict.fromkeys(answer.nodes, Support.refused("", "")))


@device
class PromisesTooMuch(_Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        if any(node.op_type == "Softmax" for node in model.ordered_nodes()):
            raise UnsupportedError("there is no Softmax")
        return super().compile_model(model, config)


@device
class PromisesTooLittle(_Device):
    def query_model(self, model: Model, config: Config) -> QueryResult:
        answer = dict(super().query_model(model, config).nodes)
        for node in model.ordered_nodes():
            if node.op_type == "Softmax":
                answer[node.friendly_name] = Support.refused(RefusalCause.OP, "there is no Softmax")
        return QueryResult(answer)


@device
class AnswersForSomeNodes(_Device):
    def query_model(self, model: Model, config: Config) -> QueryResult:
        nodes = super().query_model(model, config).nodes
        return QueryResult(dict(list(nodes.items())[1:]))


@device
class PlacesEveryOperation(_Device):
    """No fault: it says that it puts each operation into a subgraph of its own."""

    def query_model(self, model: Model, config: Config) -> QueryResult:
        answer = super().query_model(model, config)
        return QueryResult(answer.nodes, answer.atoms, self.placement(list(answer.nodes)))

    def placement(self, names: list[str]) -> PlacementReport:
        subgraphs = tuple(PlacedSubgraph(i, self.name, (name,)) for i, name in enumerate(names))
        sources = dict.fromkeys(names, "priority")
        return PlacementReport((self.name,), "single", "single", "priority", subgraphs, (), 1, sources=sources)


@device
class PlacesAnOperationTwice(PlacesEveryOperation):
    def placement(self, names: list[str]) -> PlacementReport:
        return super().placement([*names, names[0]])


@device
class ForgetsToPlaceAnOperation(PlacesEveryOperation):
    def placement(self, names: list[str]) -> PlacementReport:
        return super().placement(names[1:])


@device
class ChangesTheModel(_Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        network = super().compile_model(model, config)
        for node in model.ordered_nodes():
            node.friendly_name = f"{node.friendly_name}_compiled"
        return network


@device
class KeepsNetworks(_Device):
    kept: ClassVar[list[ExecutableNetwork]] = []

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        self.kept.append(super().compile_model(model, config))
        return self.kept[-1]


@device
class ForgetsExportedConfig(_Device):
    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        return super().import_network(blob, self.config)


@device
class IgnoresConfig(_Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        return super().compile_model(model, self.config)


@device
class SetsDefaultsOneByOne(_Device):
    """Of several defaults, keeps those before the one that it refuses."""

    def set_config(self, values: Mapping[str, object]) -> None:  # type: ignore[misc]
        for name, value in values.items():
            super().set_config({name: value})


@device
class ReportsAWrongType(_Device):
    def metric(self, name: str, device_id: str) -> object:
        return 5 if name == "FULL_DEVICE_NAME" else super().metric(name, device_id)


@device
class HasNoName(_Device):
    def metric(self, name: str, device_id: str) -> object:
        return "" if name == "FULL_DEVICE_NAME" else super().metric(name, device_id)


@device
class FailsWithAnOption(_Device):
    properties = (
        *_Device.properties,
        Property("FAULTY_FAST_MODE", bool, False, CONFIG, "Compute the product with one operand."),
    )

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        network = super().compile_model(model, config)
        if config["FAULTY_FAST_MODE"]:
            assert isinstance(network, TemplateNetwork)
            network.program.inputs[1] = network.program.inputs[0]
        return network


@device
class HasNoContexts(_Device):
    """No fault: a device need not have contexts."""

    create_context = TemplatePlugin.__mro__[1].create_context  # type: ignore[assignment]


@device
class ReadsScalarsAsZeros(_Device):
    class Tensor(TemplateTensor):
        def read(self) -> np.ndarray[Any, Any]:
            return super().read() if self.shape else np.zeros((), self.dtype)

    class Context(TemplateContext):
        def create_tensor_impl(self, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
            nbytes = math.prod(shape) * np.dtype(element_type.numpy).itemsize
            address = self.allocate(nbytes)
            return ReadsScalarsAsZeros.Tensor(self, element_type, shape, address, is_owner=True)

    def create_context(self, device: str, config: Config, handles: Mapping[str, object]) -> RemoteContext:
        return self.Context(self, device, handles)


@device
class CannotExport(_Device):
    """No fault: it declares that it cannot, and says so when asked."""

    import_network = TemplatePlugin.__mro__[1].import_network  # type: ignore[assignment]

    class Network(_Network):
        def export_sections(self, writer: BlobWriter) -> None:
            raise UnsupportedError(f"{self.plugin.name} cannot export compiled networks")

    network_class = Network


@device
class ExportsThoughItDeclaresNot(_Device):
    import_network = TemplatePlugin.__mro__[1].import_network  # type: ignore[assignment]


@device
class KnowsNoStrings(_Device):
    """No fault: its query says which element type it lacks."""

    def query_model(self, model: Model, config: Config) -> QueryResult:
        answer: Mapping[str, Support] = super().query_model(model, config).nodes
        if not any(node.op_type == "StringConcat" for node in model.ordered_nodes()):
            return QueryResult(answer)
        return QueryResult(
            dict.fromkeys(answer, Support.refused(RefusalCause.ELEMENT_TYPE, "no strings here; use numbers"))
        )
