"""Answers to queries as JSON. Nodes are told by their positions, since those without a name have others in a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import DeviceError
from engine.ir import Model
from engine.plugin_api import QueryResult, RefusalCause, Support, SupportLevel
from engine_isolated.models import extensions_of, shared_model
from engine_isolated.pool import pool
from engine_isolated.target import Target


def answer_of(model: Model, target: Target) -> QueryResult:
    """What the device answers in a process. Raises its errors, `DeviceError` if the process ends or hangs."""
    shared, places = shared_model(model)
    arguments = {**target.arguments, "model": places}
    additions = target.additions(extensions_of(model))
    answer = pool.ask(target.device, additions, "query", target.bounds.call_timeout, shared, arguments)
    try:
        return _read(answer, model)
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise DeviceError(f"the process of {target.device} sent a malformed answer to a query: {e}") from e


def described(answer: QueryResult, model: Model) -> dict[str, Any]:
    """The answer for a model, as JSON. How a device that runs on others divides the model is left out."""
    nodes = model.ordered_nodes()
    positions = {node.friendly_name: index for index, node in enumerate(nodes)}
    supports = [
        [positions[name], s.level.value, None if s.cause is None else s.cause.value, s.reason, s.precision,
         s.precision_reason]
        for name, s in answer.nodes.items()
    ]  # fmt: skip
    return {"nodes": supports, "atoms": [sorted(positions[name] for name in atom) for atom in answer.atoms]}


def _read(answer: Mapping[str, Any], model: Model) -> QueryResult:
    names = [node.friendly_name for node in model.ordered_nodes()]
    supports = {}
    for position, level, cause, reason, precision, precision_reason in answer["nodes"]:
        supports[names[position]] = Support(
            SupportLevel(level), None if cause is None else RefusalCause(cause), reason, precision, precision_reason
        )
    atoms = tuple(frozenset(names[position] for position in atom) for atom in answer["atoms"])
    return QueryResult(supports, atoms)
