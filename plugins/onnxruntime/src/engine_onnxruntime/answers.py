"""Queries: the runtime itself is asked for each kind of operation, once."""

from __future__ import annotations

from functools import partial
from typing import Final

from engine.errors import ModelWriteError
from engine.ir import Node
from engine.lowering import NodeAnswers
from engine.passes.runtime_info import is_operation
from engine.plugin_api import Model, QueryResult, RefusalCause, Support, SupportLevel, TensorType, UnsupportedError
from engine_onnxruntime.refusals import refusal
from engine_onnxruntime.runtime import SessionPlan

_LARGE: Final = 1024
"""Constants of more bytes are inputs of a question: kernels check only the values of small ones."""
_USUAL: Final = frozenset({"f32", "i64", "i32", "bool"})


class Answers:
    """The runtime's answers, by operator, attributes, types and plan. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, NodeAnswers[Support]] = {}

    def of(self, model: Model, plan: SessionPlan) -> QueryResult:
        """The support of each operation of a model."""
        fresh: NodeAnswers[Support] = NodeAnswers(partial(_ask, plan), max_constant_bytes=_LARGE)
        key = repr((plan.device_id, plan.provider_options, plan.session_options))
        answers = self._known.setdefault(key, fresh)
        nodes = [node for node in model.ordered_nodes() if is_operation(node)]
        return QueryResult({node.friendly_name: _answer(answers, node) for node in nodes})


def _answer(answers: NodeAnswers[Support], node: Node) -> Support:
    wrong = refusal(node)
    if wrong is not None:
        return wrong
    try:
        found = answers.answer(node)
    except ModelWriteError as e:
        return Support.refused(RefusalCause.OP, f"{node.op_type}: {e}")
    if found.level is SupportLevel.REFUSED:
        for inner in (each for body in node.bodies.values() for each in body.ordered_nodes() if is_operation(each)):
            why = _answer(answers, inner)  # the runtime names the outer node alone
            if why.level is SupportLevel.REFUSED:
                return Support.refused(
                    why.cause or RefusalCause.OP, f"in its body, {inner.friendly_name}: {why.reason}"
                )
    return found


def _ask(plan: SessionPlan, single: Model) -> Support:
    try:
        plan.open(single, plan.for_query, is_alone=True)
    except UnsupportedError as e:
        (node,) = (each for each in single.ordered_nodes() if is_operation(each))
        operator = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
        types = {value.type for value in (*node.input_values, *node.outputs) if value is not None}
        names = {each.element_type.name if isinstance(each, TensorType) else "other" for each in types}
        return Support.refused(_cause(str(e), bool(names - _USUAL)), f"{operator}: {e}")
    return Support.native()


def _cause(reason: str, has_rare_types: bool) -> RefusalCause:
    """The cause behind the runtime's words, which are the same for an operator and for its types."""
    if "Type Error" in reason or "MLDataType" in reason or ("implementation" in reason and has_rare_types):
        return RefusalCause.ELEMENT_TYPE
    return RefusalCause.OP if "implementation" in reason or "not a registered" in reason else RefusalCause.ATTRIBUTE
