"""What OpenVINO runs: its own answer for each kind of node."""

from __future__ import annotations

from engine.errors import EngineError
from engine.ir import Model, Node
from engine.lowering import NodeAnswers
from engine.passes.runtime_info import is_operation
from engine.plugin_api import Config, QueryResult, RefusalCause, Support
from engine_openvino.refusals import refusal
from engine_openvino.runtime import Runtime


def query(model: Model, runtime: Runtime, config: Config, answers: NodeAnswers[str]) -> QueryResult:
    """The support of each operation of `model`, alone; `answers` are OpenVINO's."""
    precision = config["INFERENCE_PRECISION_HINT"]

    def support(node: Node) -> Support:
        refused = refusal(node, runtime, is_narrow=config["ALLOW_NARROW_TYPES"])
        if refused is not None:
            return refused
        why = answers.answer(node)
        if why:
            return Support.refused(RefusalCause.OP, why)
        return Support.native(precision if any(output.element_type.is_real for output in node.outputs) else "")

    return QueryResult({node.friendly_name: support(node) for node in filter(is_operation, model.ordered_nodes())})


def ask(model: Model, runtime: Runtime, device: str, config: Config) -> str:
    """Why OpenVINO does not run the only node of `model`; empty if it does."""
    try:
        runtime.compile(model, device, runtime.settings(device, config), as_file=False)
    except EngineError as e:
        return str(e)
    return ""
