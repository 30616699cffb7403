"""What OpenVINO runs: its own answer for each kind of node."""

from __future__ import annotations

from engine.errors import EngineError
from engine.ir import Model, Node
from engine.lowering import NodeAnswers
from engine.passes.runtime_info import is_operation
from engine.plugin_api import Config, QueryResult, RefusalCause, Support, SupportLevel
from engine_openvino.refusals import refusal
from engine_openvino.runtime import Runtime


def query(model: Model, runtime: Runtime, config: Config, answers: NodeAnswers[str]) -> QueryResult:
    """The support of each operation of `model`: alone, by OpenVINO's `answers`, and if all are taken, together.

    Between nodes, OpenVINO may know less of shapes than the model does, and then it refuses nodes that it takes alone.
    """
    precision = config["INFERENCE_PRECISION_HINT"]

    def support(node: Node) -> Support:
        refused = refusal(node, runtime, is_narrow=config["ALLOW_NARROW_TYPES"])
        if refused is not None:
            return refused
        why = answers.answer(node)
        if why:
            return Support.refused(RefusalCause.OP, why)
        return Support.native(precision if any(output.element_type.is_real for output in node.outputs) else "")

    nodes = [node for node in model.ordered_nodes() if is_operation(node)]
    found = {node.friendly_name: support(node) for node in nodes}
    if len(nodes) > 1 and not any(map(_is_refused, found.values())) and not all(map(_is_static, nodes)):
        why = runtime.why_not_read(model)
        named = [name for name in found if f": {name}>" in why] or list(found)
        found |= dict.fromkeys(named if why else (), Support.refused(RefusalCause.OP, why))
    return QueryResult(found)


def _is_static(node: Node) -> bool:
    return all(output.shape.is_static for output in node.outputs)


def _is_refused(support: Support) -> bool:
    return support.level is SupportLevel.REFUSED


def ask(model: Model, runtime: Runtime, device: str, config: Config) -> str:
    """Why OpenVINO does not run the only node of `model`; empty if it does."""
    try:
        runtime.compile(model, device, runtime.settings(device, config), as_file=False)
    except EngineError as e:
        return str(e)
    return ""
