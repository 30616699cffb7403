"""Type inference over every node of the ONNX suite's models: what it says must never contradict what is computed.

If it fails, a pass or a plugin plans with a wrong shape or type. Each model is inferred with its own shapes, with
symbolic and bounded dimensions, and without ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from engine import ops
from engine.errors import EngineError
from engine.ir import (
    Constant,
    Dimension,
    ElementType,
    Model,
    Node,
    OptionalType,
    PartialShape,
    SequenceType,
    TensorType,
    ValueType,
    undefined,
)
from engine.onnx import read_model
from engine.ops.inference import infer
from engine.testing import onnx_suite

CASES = {case.name: case for case in onnx_suite.CASES.values() if case.data_sets}

# The model's file declares its body's output as a sequence of scalars and inserts vectors.
_CONTRADICTS_ITSELF = {"test_loop16_seq_none"}
_LONGEST = 4096


@pytest.mark.parametrize("chunk", range(16))
def test_inference_agrees_with_evaluation(chunk: int) -> None:
    names = sorted(set(CASES) - _CONTRADICTS_ITSELF)[chunk::16]
    wrong = [f"{name}: {problem}" for name in names for problem in _problems(name)]
    assert not wrong, "\n".join(wrong)


def _problems(name: str) -> list[str]:
    case = CASES[name]
    inputs = [_value(v) for v in case.data_sets[0][0]]
    try:
        model = read_model(case.model.SerializeToString())
        values = _evaluate(model, inputs)
    except EngineError:
        return []  # the suite itself reports what cannot be evaluated
    problems = []
    for loosen in (lambda t: t, _symbolic, _rankless):
        for parameter in model.parameters:
            parameter.type = loosen(parameter.type)
        for node in model.ordered_nodes():
            if node.op_type in ("Parameter", "Result", "Constant"):
                continue
            types = infer(node)
            problems += [
                f"{node}: output {index} is {_text(values[node, index])}, inferred {t}"
                for index, t in enumerate(types)
                if not _fits(values[node, index], t)
            ]
            for index, value_type in enumerate(types):
                node.set_output_type(index, value_type)
    return problems


def _symbolic(value_type: ValueType) -> ValueType:
    if not isinstance(value_type, TensorType) or value_type.shape.rank.is_dynamic:
        return value_type
    dims = [
        Dimension(0, _LONGEST) if axis % 2 else Dimension(symbol=f"S{dim.min}") if dim.is_static else dim
        for axis, dim in enumerate(value_type.shape)
    ]
    return TensorType(value_type.element_type, PartialShape(dims))


def _rankless(value_type: ValueType) -> ValueType:
    if not isinstance(value_type, TensorType):
        return value_type
    return TensorType(value_type.element_type, PartialShape.dynamic())


def _evaluate(model: Model, inputs: list[Any]) -> dict[tuple[Node, int], Any]:
    values: dict[tuple[Node, int], Any] = {}
    for parameter, value in zip(model.parameters, inputs, strict=False):
        values[parameter, 0] = value
    for node in model.ordered_nodes():
        if node.op_type in ("Parameter", "Result"):
            continue
        if isinstance(node, Constant):
            outputs: tuple[Any, ...] = (node.data,)
        else:
            sources = [None if s is None else values[s.node, s.index] for s in node.input_values]
            outputs = ops.evaluate(node, sources)
        values.update({(node, index): value for index, value in enumerate(outputs)})
    return values


def _fits(value: Any, value_type: ValueType | None) -> bool:
    if isinstance(value_type, TensorType):
        if value is None:
            return True  # an optional output that the implementation leaves out
        return (
            isinstance(value, np.ndarray)
            and value_type.element_type in (undefined, ElementType.from_numpy(value.dtype))
            and value_type.shape.accepts(value.shape)
        )
    if isinstance(value_type, SequenceType):
        return isinstance(value, list) and all(_fits(item, value_type.element) for item in value)
    if isinstance(value_type, OptionalType):
        return value is None or _fits(value, value_type.element)
    return True


def _text(value: Any) -> str:
    return f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _value(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, list):
        return [_value(item) for item in value]
    return value if value is None or isinstance(value, (np.ndarray, dict)) else np.asarray(value)
