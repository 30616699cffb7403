"""Lengths that are open when a model is compiled: contradictions are refused once they are known, never computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine import Core, ops
from engine.errors import InputError, ModelError
from engine.ir import Constant, ElementType, Model, Node, Parameter, PartialShape, f32
from engine.ops.cases import OperatorCase, all_cases
from engine.ops.late_lengths import contradiction_of

_FEW = 4
"""Cases of an operator that are varied."""


def _cases() -> dict[str, list[OperatorCase]]:
    found: dict[str, list[OperatorCase]] = {}
    for case in all_cases().values():
        several = found.setdefault(case.op_type, [])
        if len(several) < _FEW and sum(data is not None for data in case.inputs) > 1:
            several.append(case)
    return {op_type: several for op_type, several in found.items() if several}


CASES = _cases()


def _variants(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The same array with another length."""
    for axis, length in enumerate(array.shape):
        if length > 1:
            yield np.take(array, range(length - 1), axis)
            yield np.take(array, [0], axis)
        yield np.concatenate([array, array], axis)
    if array.ndim > 1:
        yield np.ascontiguousarray(np.swapaxes(array, 0, 1))


def _node(case: OperatorCase, arrays: list[Any], *, is_open: bool) -> Node:
    sources: list[Any] = []
    for data, array in zip(case.inputs, arrays, strict=True):
        if data is None:
            sources.append(None)
        elif data.is_constant:
            sources.append(Constant(array, data.type))
        else:
            sources.append(Parameter(data.type, PartialShape([-1] * array.ndim if is_open else array.shape)))
    attributes = {k: v.onnx if isinstance(v, ElementType) else v for k, v in case.attributes.items()}
    return ops.create(case.op_type, sources, attributes, domain=case.domain, num_outputs=case.num_outputs)


@pytest.mark.parametrize("op_type", CASES)
def test_lengths_that_a_type_rule_refuses_are_not_computed(op_type: str) -> None:
    for case in CASES[op_type]:
        arrays = case.arrays()
        for index, data in enumerate(case.inputs):
            array = arrays[index]
            if data is None or data.is_constant or array is None or array.size > 10_000:
                continue
            for varied in _variants(array):
                given = [*arrays[:index], varied, *arrays[index + 1 :]]
                try:
                    _node(case, given, is_open=False)
                    continue
                except ModelError:
                    node = _node(case, given, is_open=True)
                with pytest.raises(InputError):
                    ops.evaluate(node, given)


@pytest.mark.parametrize(
    ("index", "shape"),
    [(0, (2, 3, 12)), (1, (2, 4, 2)), (1, (1, 4, 6)), (2, (2, 5, 10)), (4, (2, 5, 6)), (4, (1, 4, 6)), (5, (4, 2, 2))],
    ids=[
        "few queries",
        "narrow keys",
        "keys of one sample",
        "many values",
        "long decay",
        "decay of one sample",
        "beta",
    ],
)
@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_linear_attention_of_lengths_that_do_not_fit(device: str, index: int, shape: tuple[int, ...]) -> None:
    """The reference evaluator broadcasts them, or leaves the rest out."""
    shapes = [(2, 4, 12), (2, 4, 6), (2, 4, 10), (2, 2, 3, 5), (2, 4, 6), (2, 4, 2)]
    inputs = [Parameter(f32, [-1] * len(each)) for each in shapes]
    node = ops.LinearAttention(*inputs, q_num_heads=4, kv_num_heads=2)
    request = Core().compile_model(Model([node.output(0)], inputs), device).create_infer_request()
    assert request.infer([np.ones(each, np.float32) for each in shapes])[0].shape == (2, 4, 20)
    shapes[index] = shape
    with pytest.raises(InputError, match="LinearAttention"):
        request.infer([np.ones(each, np.float32) for each in shapes])


def test_known_lengths_and_bodies_take_no_check() -> None:
    known = ops.Add(Parameter(f32, [2]), Parameter(f32, [2]))
    assert contradiction_of(known) is None
    assert contradiction_of(ops.Add(Parameter(f32, [2]), Parameter(f32, [-1]))) is not None


def test_many_shapes_are_valid_and_few_are_kept() -> None:
    """A decoder's past grows at each step."""
    contradicts = contradiction_of(ops.Add(Parameter(f32, [-1]), Parameter(f32, [-1])))
    assert contradicts is not None
    for length in range(200):
        assert not contradicts([np.ones(length, np.float32), np.ones(1, np.float32)])
    assert contradicts([np.ones(3, np.float32), np.ones(2, np.float32)])
    assert contradicts([np.ones(3, np.float32), np.ones(2, np.float32)])
