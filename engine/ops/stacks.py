"""The values that the iterations of a loop stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import EngineError, InputError, ModelError
from engine.ir import (
    Constant,
    Model,
    Node,
    Output,
    Parameter,
    PartialShape,
    Result,
    TensorType,
    ValueType,
    boolean,
    i32,
    i64,
)
from engine.limits import LARGE_BYTES, check_growth
from engine.ops.reference import compile_node
from engine.ops.registry import find_op
from engine.ops.result_size import value_bytes
from engine.ops.tensors import Array

_FOLDED_ELEMENTS: Final = 1000
"""Constants with more elements are not shapes."""


class Stacks:
    """For each stacked output of a loop, its value in each iteration; all have one shape, unless `is_sequence`."""

    __slots__ = ("_bytes", "_checked", "_is_sequence", "_title", "columns")

    def __init__(self, title: str, count: int, *, is_sequence: bool = False) -> None:
        self.columns: list[list[Any]] = [[] for _ in range(count)]
        self._title = title
        self._is_sequence = is_sequence
        self._bytes = 0
        self._checked = LARGE_BYTES

    def append(self, values: Sequence[Any]) -> None:
        """Add the values of one iteration.

        Raises `InputError` for a value of another shape than before, and `OutOfMemoryError` if the result would not fit
        into memory.
        """
        for index, (column, value) in enumerate(zip(self.columns, values, strict=True)):
            if column and not self._is_sequence and np.shape(value) != np.shape(column[0]):
                raise InputError(
                    f"{self._title}, stacked output {index}: iteration {len(column)} made the shape "
                    f"{list(np.shape(value))}, iterations before it {list(np.shape(column[0]))}; expected equal shapes"
                )
            column.append(value)
            self._bytes += value_bytes(value)
        if self._bytes >= self._checked:
            self._checked = self._bytes + LARGE_BYTES
            check_growth(self._title, self._bytes)  # stacking them copies all


def empty_stacks(body: Model, shapes: Sequence[Sequence[int] | Array | None], axes: Sequence[int]) -> list[Array]:
    """The stacks of a loop that runs no iteration: arrays of length 0 along `axes`, one for each of the last results.

    ONNX says only that they are empty. Their other lengths are the lengths of the elements that the first iteration
    would stack, as far as inference finds them by the shapes of its inputs, and 0 where it does not (as onnxruntime's
    Loop). So the result is the same whether a device knows the shapes before the inference or not.

    Args:
        body: the body of the loop, which is not changed.
        shapes: of the first iteration's values of the parameters and captures; the value of a captured constant, and
            None for what is not a tensor.
        axes: for each stacked result, the axis along which it is stacked, from -rank to rank - 1 of the stack.

    Raises:
        ModelError: the number of dimensions of an element is not known.
    """
    types = _result_types(body, shapes)[len(body.results) - len(axes) :]
    return [_empty_stack(value_type, axis) for value_type, axis in zip(types, axes, strict=True)]


def _result_types(body: Model, shapes: Sequence[Sequence[int] | Array | None]) -> list[ValueType]:
    copy = body.clone()
    for parameter, shape in zip([*copy.parameters, *copy.captures], shapes, strict=True):
        if isinstance(shape, np.ndarray):
            parameter.output(0).replace(Constant(shape, parameter.output(0).element_type).output(0))
        elif shape is not None:
            _set_shape(parameter, shape)
    try:
        copy.validate()
        for node in copy.ordered_nodes():
            node.infer_types()
            _fold_sizes(node)
        return [result.type for result in copy.results]
    except EngineError:  # an iteration would fail; there is none
        return [result.type for result in body.results]


def _fold_sizes(node: Node) -> None:
    """Make a constant of a Shape or Size, and of values computed only from constants: such a value may be the shape of
    another.
    """
    if isinstance(node, (Constant, Parameter, Result)) or not node.num_inputs or node.bodies:
        return
    if not all(isinstance(each, TensorType) and each.element_type in (i64, i32, boolean) for each in node.output_types):
        return
    op = find_op(node.op_type, node.domain)
    values = [_value(node, source) for source in node.input_values]
    if op is None or not op.is_deterministic or any(each is None for each in values):
        return
    for output, value in zip(node.outputs, compile_node(node)(values), strict=True):
        output.replace(Constant(np.asarray(value)).output(0))


def _value(node: Node, source: Output | None) -> Array | None:
    if source is None or not isinstance(source.type, TensorType):
        return None
    if isinstance(source.node, Constant):
        return source.node.data if source.node.data.size <= _FOLDED_ELEMENTS else None
    if node.op_type in ("Shape", "Size") and source.shape.is_static:  # whatever the elements are
        return np.broadcast_to(np.zeros((), source.element_type.numpy), source.shape.get_shape())
    return None


def _set_shape(parameter: Parameter, shape: Sequence[int]) -> None:
    if isinstance(parameter.type, TensorType):
        parameter.type = TensorType(parameter.type.element_type, PartialShape(shape))


def _empty_stack(element: ValueType, axis: int) -> Array:
    if not isinstance(element, TensorType) or element.shape.rank.is_dynamic:
        raise ModelError(
            f"no iteration ran, and the number of dimensions of a stacked output is unknown: its elements are "
            f"{element}; state their shape in the model, or let the loop run at least once"
        )
    shape = [dim.min if dim.is_static else 0 for dim in element.shape]
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 0)
    return np.empty(shape, element.element_type.numpy)
