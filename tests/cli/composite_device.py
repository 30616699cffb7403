"""A device that divides models among others in the plainest way, and one that runs next to nothing itself."""

from __future__ import annotations

from collections.abc import Mapping

from engine_template import TemplatePlugin

from engine.ir import Constant, Node, Output, Parameter, Result
from engine.plugin_api import (
    BlobReader,
    Config,
    Crossing,
    ExecutableNetwork,
    Model,
    NodeRefusal,
    PlacedSubgraph,
    PlacementReport,
    Plugin,
    QueryResult,
    RefusalCause,
    Support,
    SupportLevel,
)
from engine.properties import DEVICE_PRIORITIES


class PickyPlugin(TemplatePlugin):
    """TEMPLATE, but only for Relu and Mul."""

    name = "PICKY"

    def query_model(self, model: Model, config: Config) -> QueryResult:
        refused = Support.refused(RefusalCause.OP, "PICKY runs Relu and Mul; put the rest elsewhere")
        return QueryResult({n.friendly_name: _native if n.op_type in ("Relu", "Mul") else refused for n in _of(model)})


class BarePlugin(TemplatePlugin):
    """TEMPLATE, but an imported network keeps no graph to look at."""

    name = "BARE"

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        network = super().import_network(blob, config)
        network.graph = None
        return network


class SplitPlugin(Plugin):
    """Each operation on the first device that runs it natively; what follows each other on a device is a subgraph."""

    name = "SPLIT"
    version = "1.0"
    api_version = 2
    properties = (DEVICE_PRIORITIES,)

    def query_model(self, model: Model, config: Config) -> QueryResult:
        devices = config[DEVICE_PRIORITIES].split(",")
        answers = {device: self.core.query_model(model, device) for device in devices}
        place: dict[str, str] = {}
        for node in _of(model):
            for device in devices:
                if answers[device][node.friendly_name].level is SupportLevel.NATIVE:
                    place.setdefault(node.friendly_name, device)
        if lost := {n.friendly_name for n in _of(model)} - place.keys():
            refused = Support.refused(RefusalCause.PLACEMENT, "none of the devices runs it; list another one")
            return QueryResult({n.friendly_name: refused if n.friendly_name in lost else _native for n in _of(model)})
        return QueryResult(dict.fromkeys(place, _native), placement=_report(model, place, answers))

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        raise NotImplementedError


_native = Support.native()


def _of(model: Model) -> list[Node]:
    return [node for node in model.ordered_nodes() if not isinstance(node, (Parameter, Constant, Result))]


def _report(model: Model, place: Mapping[str, str], answers: Mapping[str, QueryResult]) -> PlacementReport:
    runs: list[list[Node]] = []
    for node in _of(model):
        if not runs or place[runs[-1][0].friendly_name] != place[node.friendly_name]:
            runs.append([])
        runs[-1].append(node)
    number = {node: i for i, run in enumerate(runs) for node in run}
    crossings: dict[tuple[int, int, Output], Crossing] = {}
    for node, target in number.items():
        for value in node.input_values:
            source = None if value is None else number.get(value.node)
            if value is not None and source is not None and source != target:
                size = value.shape.size() * value.element_type.numpy.itemsize if value.shape.is_static else None
                crossings[source, target, value] = Crossing(value.node.friendly_name, source, target, size)
    subgraphs = tuple(
        PlacedSubgraph(
            i,
            place[run[0].friendly_name],
            tuple(node.friendly_name for node in run),
            tuple(sorted({source for source, target, _ in crossings if target == i})),
            0.001 * len(run),
            op_types=tuple(node.op_type for node in run),
        )
        for i, run in enumerate(runs)
    )
    refusals = tuple(
        NodeRefusal(n.friendly_name, n.op_type, device, support.level.value, support.cause, support.reason)
        for n in _of(model)
        for device, answer in answers.items()
        if (support := answer[n.friendly_name]).level is not SupportLevel.NATIVE
    )
    return PlacementReport(
        devices=tuple(answers),
        strategy="runs",
        mode="serial",
        placement="priority",
        subgraphs=subgraphs,
        crossings=tuple(crossings.values()),
        lower_bound=min(2, len(subgraphs)),
        refusals=refusals,
        sources=dict.fromkeys(place, "priority"),
        predicted_seconds={"serial": 0.001 * len(place)},
        findings=("moving `softmax` to TEMPLATE costs 2.00 ms more than it gains",),
    )
