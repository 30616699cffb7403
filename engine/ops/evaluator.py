"""Reference evaluation of whole models: a list of steps over slots, which frees values after their last use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.errors import InputError
from engine.ir import Constant, Model, Node, Output
from engine.ops.interruption import current_check
from engine.ops.reference import compile_node, constant_value
from engine.ops.registry import Evaluator


def evaluate_model(model: Model, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
    """The outputs of `model`, in order, for its inputs by name or in order.

    A list has one value per parameter; a mapping has the parameters' names. The caller is responsible for types and
    shapes, which are not checked. Raises `InputError` for missing or surplus inputs, `UnsupportedError`, `DeviceError`.
    """
    return ModelEvaluator(model).run(_in_order(model, inputs))


class ModelEvaluator:
    """Evaluates one model any number of times; safe for concurrent calls.

    The model and its bodies are compiled on construction; later changes of the model have no effect. Raises
    `UnsupportedError` if a node has no reference evaluation.
    """

    __slots__ = ("_constants", "_num_inputs", "_num_slots", "_results", "_steps", "name")

    def __init__(self, model: Model) -> None:
        self.name = model.name
        slots: dict[tuple[Node, int], int] = {}
        borders = [*model.parameters, *model.captures]
        for parameter in borders:
            slots[parameter, 0] = len(slots)
        self._num_inputs = len(borders)
        self._constants: list[tuple[int, Constant]] = []
        steps: list[tuple[Evaluator, list[int], list[int]]] = []
        for node in model.ordered_nodes():
            if node.op_type in ("Parameter", "Result"):
                continue
            outputs = [slots.setdefault((node, index), len(slots)) for index in range(node.num_outputs)]
            if isinstance(node, Constant):
                self._constants.append((outputs[0], node))
            else:
                steps.append((compile_node(node), [_slot(slots, source) for source in node.input_values], outputs))
        self._results = [_slot(slots, result.input_value(0)) for result in model.results]
        self._num_slots = len(slots)
        self._steps = _with_releases(steps, {*self._results, *(slot for slot, _ in self._constants)})

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs, given the values of the parameters followed by the captured values."""
        if len(inputs) != self._num_inputs:
            raise InputError(f"model `{self.name}` takes {self._num_inputs} inputs, got {len(inputs)}")
        values: list[Any] = [*inputs, *([None] * (self._num_slots + 1 - len(inputs)))]  # the last one stays None
        for index, (slot, constant) in enumerate(self._constants):
            data = constant.data
            values[slot] = value = constant_value(data)
            if value is not data:  # a copy, which an iteration of a loop leaves to the next one
                self._constants[index] = slot, Constant(value)
        check = current_check()
        if check is not None:
            check()  # the loop of a body without nodes can also be endless
        for call, sources, outputs, dead in self._steps:
            if check is not None:
                check()
            for slot, value in zip(outputs, call([values[source] for source in sources]), strict=True):
                values[slot] = value
            for slot in dead:
                values[slot] = None
        return [values[slot] for slot in self._results]


def _slot(slots: dict[tuple[Node, int], int], source: Output | None) -> int:
    return -1 if source is None else slots[source.node, source.index]


def _with_releases(
    steps: list[tuple[Evaluator, list[int], list[int]]], kept: set[int]
) -> list[tuple[Evaluator, list[int], list[int], list[int]]]:
    """Each step with the slots that no later step reads."""
    seen = {*kept, -1}
    reversed_steps = []
    for call, sources, outputs in reversed(steps):
        dead = [slot for slot in dict.fromkeys((*sources, *outputs)) if slot not in seen]
        seen.update(dead)
        reversed_steps.append((call, sources, outputs, dead))
    return reversed_steps[::-1]


def _in_order(model: Model, inputs: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
    names = [parameter.friendly_name for parameter in model.parameters]
    if isinstance(inputs, np.ndarray):
        inputs = [inputs]
    if not isinstance(inputs, Mapping):
        return list(inputs)
    surplus = [name for name in inputs if name not in names]
    missing = [name for name in names if name not in inputs]
    if surplus or missing:
        raise InputError(
            f"model `{model.name}` takes inputs {', '.join(names) or 'none'}; "
            f"missing {', '.join(missing) or 'none'}, unknown {', '.join(surplus) or 'none'}"
        )
    return [inputs[name] for name in names]
