"""Devices that are wrong in one way each beside their kernels: in requests, shapes, queries and parts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from engine_template.request import TemplateInferRequest
from mutants.numeric_base import Device, Network, device, network, request

from engine.plugin_api import (
    Config,
    ExecutableNetwork,
    Model,
    QueryResult,
    RefusalCause,
    Support,
    UnsupportedError,
)

# -- buffers and shapes -------------------------------------------------------------------------------------


@request
class SharesAScratchBuffer(TemplateInferRequest):
    """Large results pass through a buffer of the device, which all requests use."""

    scratch: ClassVar[np.ndarray[Any, Any]] = np.empty(1 << 20, np.float32)

    def infer_postprocess(self) -> None:
        for slot in self.program.outputs:
            value = self.memory[slot]
            if isinstance(value, np.ndarray) and 4096 < value.size <= self.scratch.size:
                buffer = self.scratch[: value.size].reshape(value.shape)
                np.copyto(buffer, value)
                time.sleep(0.002)
                self.memory[slot] = buffer
        super().infer_postprocess()


@request
class ReturnsItsLargeBuffer(TemplateInferRequest):
    """Without a copy, if it is large."""

    buffers: Mapping[Any, Any] = {}

    def infer_postprocess(self) -> None:
        self.buffers = dict(self.buffers)
        for index, slot in enumerate(self.program.outputs):
            value = self.memory[slot]
            is_large = isinstance(value, np.ndarray) and value.size > 4096
            if is_large:
                buffer = self.buffers.setdefault(value.shape, np.empty_like(value))
                np.copyto(buffer, value)
                value = buffer
            self.store_output(index, value, copy=not is_large)
        self.memory = []


@request
class KeepsPlansBySize(TemplateInferRequest):
    """The shape of a result is remembered for the number of elements of the inputs."""

    def infer_postprocess(self) -> None:
        self.shapes = getattr(self, "shapes", {})
        size = sum(value.size for value in self.inputs)
        for index, slot in enumerate(self.program.outputs):
            shape = self.shapes.setdefault((size, index), self.memory[slot].shape)
            self.store_output(index, np.resize(self.memory[slot], shape))
        self.memory = []


@request
class KeepsThePlanOfAShorterInput(TemplateInferRequest):
    """It makes a new plan for a longer input only; a shorter one gets as many rows as the last."""

    longest = 0

    def infer_postprocess(self) -> None:
        for index, slot in enumerate(self.program.outputs):
            value = self.memory[slot]
            self.longest = max(self.longest, len(value) if value.ndim else 0)
            self.store_output(index, np.resize(value, (self.longest, *value.shape[1:])) if value.ndim else value)
        self.memory = []


@request
class FailsOnEmptyInputs(TemplateInferRequest):
    def infer_preprocess(self) -> None:
        super().infer_preprocess()
        for value in self.inputs:
            assert 1000 // value.size


@request
class MixesUpDroppedPlans(TemplateInferRequest):
    """It keeps the results' shapes of 16 inputs in a table in which a place is used again without a look."""

    def infer_postprocess(self) -> None:
        self.shapes = getattr(self, "shapes", {})
        for index, slot in enumerate(self.program.outputs):
            value = self.memory[slot]
            key = (index, len(self.inputs[0]) % 16 if self.inputs[0].ndim else 0)
            is_known = key in self.shapes and len(self.shapes) >= 16
            shape = self.shapes[key] if is_known else self.shapes.setdefault(key, value.shape)
            self.store_output(index, value if value.shape == shape or not is_known else np.resize(value, shape))
        self.memory = []


@network
class SharesShapesBetweenRequests(Network):
    """All results have the rows of the request that began last."""

    rows = 0

    def create_infer_request_impl(self) -> Any:
        owner = self

        class Request(TemplateInferRequest):
            def infer_preprocess(self) -> None:
                super().infer_preprocess()
                owner.rows = len(self.inputs[0]) if self.inputs and self.inputs[0].ndim else 0
                time.sleep(0.05)

            def infer_postprocess(self) -> None:
                for index, slot in enumerate(self.program.outputs):
                    value = self.memory[slot]
                    self.store_output(index, np.resize(value, (owner.rows, *value.shape[1:])) if value.ndim else value)

        return Request(self, self.program)


# -- queries ------------------------------------------------------------------------------------------------


@device
class ClaimsWhatItDoesNotCompile(Device):
    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        for node in model.ordered_nodes():
            if node.op_type == "Pad" and node.attributes.get("mode", "constant") != "constant":
                raise UnsupportedError(f"`{node.friendly_name}`: only zeros can be padded with")
        return super().compile_model(model, config)


@device
class ClaimsWhatItDoesNotCompute(Device):
    """It finds out when it runs."""

    class FailingNetwork(Network):
        op_types = ("CumSum",)

        @staticmethod
        def fault(node: Any, inputs: Any, right: Any) -> Any:
            raise NotImplementedError("no kernel for CumSum")

    network_class = FailingNetwork


@device
class RefusesWithoutAName(Device):
    """Its error does not say which node it means."""

    def query_model(self, model: Model, config: Config) -> QueryResult:
        answer = dict(super().query_model(model, config).nodes)
        for node in model.ordered_nodes():
            if node.op_type == "TopK":
                answer[node.friendly_name] = Support.refused(RefusalCause.OP, "there is no TopK")
        return QueryResult(answer)

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        if any(node.op_type == "TopK" for node in model.ordered_nodes()):
            raise UnsupportedError("this model cannot be compiled")
        return super().compile_model(model, config)


@device
class RefusesWithoutAReason(RefusesWithoutAName):
    def query_model(self, model: Model, config: Config) -> QueryResult:
        answer = super().query_model(model, config).nodes
        return QueryResult({n: s if s.level.value == "native" else replace(s, reason=" ") for n, s in answer.items()})


@device
class RefusesLongModels(Device):
    """Each operation is claimed, but not more than four of them."""

    def query_model(self, model: Model, config: Config) -> QueryResult:
        answer = super().query_model(model, config).nodes
        refused = Support.refused(RefusalCause.OP, "only four operations fit")
        return QueryResult(answer if len(answer) <= 4 else dict.fromkeys(answer, refused))


@device
class CompilesLongModelsWrongly(Device):
    """From the fifth operation on, each reads the value before the last."""

    class WrongNetwork(Network):
        def load(self, graph: Model) -> None:
            super().load(graph)
            operations = self.program.operations
            for index, operation in enumerate(operations[4:], 4):
                (before,), (earlier,) = operations[index - 1].outputs, operations[index - 3].outputs
                inputs = tuple(earlier if slot == before else slot for slot in operation.inputs)
                operations[index] = replace(operation, inputs=inputs)
            self.program.operations = [replace(operation, frees=()) for operation in operations]

    network_class = WrongNetwork


@request
class FallsBackInSilence(TemplateInferRequest):
    """Operations that were claimed as native run as reference."""

    def record_node(self, name: str, op_type: str, status: str, start_ns: int, end_ns: int) -> None:
        super().record_node(name, op_type, "reference", start_ns, end_ns)


# -- parts --------------------------------------------------------------------------------------------------


@network
class SharesConstantsBetweenNetworks(Network):
    """By their number in the network: the last network of a device has them all."""

    shared: ClassVar[dict[tuple[int, Any], Any]] = {}

    def load(self, graph: Model) -> None:
        super().load(graph)
        for number, slot in enumerate(self.program.constants):
            value = self.program.memory[slot]
            self.shared[number, value.shape] = value
        self.program.memory = _Shared(self.program.memory, self.program.constants, self.shared)


class _Shared(list[Any]):
    """Device memory with the constants of the network that was compiled last."""

    def __init__(self, memory: list[Any], constants: list[int], shared: dict[tuple[int, Any], Any]) -> None:
        super().__init__(memory)
        self.constants, self.shared = constants, shared

    def copy(self) -> list[Any]:
        memory = list(self)
        for number, slot in enumerate(self.constants):
            memory[slot] = self.shared[number, self[slot].shape]
        return memory


@network
class KeepsOneProgramForEqualModels(Network):
    """Programs are found by the number of operations and inputs: parts of one size are one part."""

    programs: ClassVar[dict[tuple[Any, ...], Any]] = {}

    def load(self, graph: Model) -> None:
        super().load(graph)
        key = len(graph.ordered_nodes()), len(graph.parameters), len(graph.results)
        self.program = self.programs.setdefault(key, self.program)


@network
class OrdersInputsByName(Network):
    """Which are numbers in a part."""

    def load(self, graph: Model) -> None:
        super().load(graph)
        order = sorted(range(len(graph.parameters)), key=lambda i: graph.parameters[i].friendly_name[::-1])
        self.program.inputs = [self.program.inputs[index] for index in order]


@request
class FreesResultsThatAreReadLater(TemplateInferRequest):
    """A result that another operation reads too is overwritten by it, as a buffer in place."""

    def _run_operations(self) -> None:
        outputs = set(self.program.outputs)
        for operation in self.program.operations:
            values = operation.run([self.memory[slot] for slot in operation.inputs])
            for slot, value in zip(operation.outputs, values, strict=True):
                self.memory[slot] = value
            for slot in outputs & set(operation.inputs):
                if getattr(self.memory[slot], "shape", ()) == getattr(values[0], "shape", None):
                    self.memory[slot] = values[0]
