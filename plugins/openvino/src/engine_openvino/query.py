"""What OpenVINO runs: its own answer for each kind of node."""

from __future__ import annotations

from engine.errors import EngineError
from engine.ir import Model, Node
from engine.lowering import NodeAnswers
from engine.passes.runtime_info import is_operation
from engine.plugin_api import Config, QueryResult, RefusalCause, Support
from engine_openvino.refusals import refusal
from engine_openvino.runtime import Runtime


def query(model: Model, runtime: Runtime, device: str, config: Config, answers: NodeAnswers[str]) -> QueryResult:
    """The support of each operation of `model`: of the whole, by one question to OpenVINO, or else of each alone.

    OpenVINO may refuse the whole although it takes each node alone, since it knows less of shapes than the model does;
    then the nodes are refused that its message names, or all.
    """
    nodes = [node for node in model.ordered_nodes() if is_operation(node)]
    refusals = {node: refusal(node, runtime, is_narrow=config["ALLOW_NARROW_TYPES"]) for node in nodes}
    why = "unknown"
    # OpenVINO may die of what is refused for its form; what is refused for its type, it reads.
    if len(nodes) > 1 and not any(each and each.cause is not RefusalCause.ELEMENT_TYPE for each in refusals.values()):
        why = runtime.why_not(model, device, runtime.settings(device, config))
    found = {}
    for node, refused in refusals.items():
        reason = "" if refused or not why else answers.answer(node)
        if reason:
            refused = Support.refused(RefusalCause.OP, reason)
        found[node.friendly_name] = refused or _native(node, config)
    if len(nodes) > 1 and why and not any(support.reason for support in found.values()):
        named = [name for name in found if f": {name}>" in why or f"`{name}`" in why]
        found |= dict.fromkeys(named or found, Support.refused(RefusalCause.OP, why))
    return QueryResult(found)


def _native(node: Node, config: Config) -> Support:
    computes = any(output.element_type.is_real for output in node.outputs)
    return Support.native(config["INFERENCE_PRECISION_HINT"] if computes else "")


def ask(model: Model, runtime: Runtime, device: str, config: Config) -> str:
    """Why OpenVINO does not run the only node of `model`; empty if it does."""
    try:
        runtime.compile(model, device, runtime.settings(device, config), as_file=False)
    except EngineError as e:
        return str(e)
    return ""
