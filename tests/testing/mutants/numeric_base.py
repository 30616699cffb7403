"""The parts of the wrong devices: TEMPLATE with kernels, requests or networks of another class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
from engine_template import TemplatePlugin
from engine_template.network import TemplateNetwork
from engine_template.request import TemplateInferRequest

from engine.ir import Node, Parameter
from engine.ops.create import create
from engine.ops.reference import compile_node
from engine.plugin_api import BlobReader, Config, ExecutableNetwork, Model, SyncInferRequest

Run = Callable[[Sequence[Any]], Sequence[Any]]
Fault = Callable[[Node, Sequence[Any], Run], Any]

MUTANTS: Final[dict[str, type[TemplatePlugin]]] = {}
"""The devices by name, added by the modules that define them."""


class Entry:
    """The object that entry points name: the devices are its attributes."""


class Network(TemplateNetwork):
    """TEMPLATE's network, with a kernel or a request that may be wrong."""

    op_types: ClassVar[tuple[str, ...]] = ()
    fault: ClassVar[Fault | None] = None
    request_class: ClassVar[type[TemplateInferRequest]] = TemplateInferRequest

    def load(self, graph: Model) -> None:
        super().load(graph)
        nodes = {node.friendly_name: node for node in graph.ordered_nodes()}
        self.program.operations = [
            replace(operation, run=self.wrong(nodes[operation.name], operation.run))
            if operation.op_type in self.op_types
            else operation
            for operation in self.program.operations
        ]

    def wrong(self, node: Node, right: Run) -> Run:
        fault = type(self).fault
        assert fault is not None

        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            outputs = fault(node, inputs, right)
            return outputs if isinstance(outputs, (list, tuple)) else [outputs]

        return run

    def create_infer_request_impl(self) -> SyncInferRequest:
        return self.request_class(self, self.program)


class Device(TemplatePlugin):
    """TEMPLATE with networks of another class."""

    network_class: ClassVar[type[TemplateNetwork]] = Network

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        return self.network_class.compiled(self, config, model)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        return self.network_class.imported(self, config, blob)


def add_mutant(name: str, cls: type[TemplatePlugin]) -> None:
    """Register a device under this name, in upper case."""
    cls.name = name.upper()
    MUTANTS[cls.name] = cls
    setattr(Entry, cls.name, cls)


def kernel(*op_types: str) -> Callable[[Fault], Fault]:
    """Register a device whose kernel for these operators has the fault."""

    def register(fault: Fault) -> Fault:
        network = type("Network", (Network,), {"op_types": op_types, "fault": staticmethod(fault)})
        add_mutant(fault.__name__, type("Device", (Device,), {"network_class": network}))
        return fault

    return register


def altered(node: Node, inputs: Sequence[Any], **attributes: Any) -> Any:
    """The first output of the node with other attributes; None drops one."""
    given = {name: value for name, value in {**node.attributes, **attributes}.items() if value is not None}
    sources = [
        None if v is None else Parameter(o.element_type, v.shape)
        for o, v in zip(node.input_values, inputs, strict=True)
    ]
    return compile_node(create(node.op_type, sources, given, domain=node.domain))(inputs)[0]


def fitted(value: Any, shape: Sequence[int]) -> Any:
    """`value` cut to `shape`, and zeros where it is smaller."""
    result = np.zeros(shape, value.dtype)
    common = tuple(slice(min(a, b)) for a, b in zip(value.shape, shape, strict=True))
    result[common] = value[common]
    return result


def first(right: Run, inputs: Sequence[Any]) -> Any:
    """The first output of the right kernel."""
    return right(inputs)[0]


def snake(name: str) -> str:
    return "".join(f"_{c}" if c.isupper() else c for c in name).upper().lstrip("_")


def device(cls: type[Device]) -> type[Device]:
    """Register a plugin with a fault."""
    add_mutant(snake(cls.__name__), cls)
    return cls


def network(cls: type[Network]) -> type[Network]:
    """Register a device whose networks have the fault."""
    add_mutant(snake(cls.__name__), type(cls.__name__, (Device,), {"network_class": cls}))
    return cls


def request(cls: type[TemplateInferRequest]) -> type[TemplateInferRequest]:
    """Register a device whose requests have the fault."""
    network(type(cls.__name__, (Network,), {"request_class": cls}))
    return cls
