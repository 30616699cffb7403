"""Variables to which a plan appends in place: the keys and values of past tokens that an attention reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from engine.ir import Input, Model, Output, f32
from engine.ops.gather import TensorScatterSpec
from engine.ops.slice import ConcatSpec
from engine_cpu.cache_formats import F32, CacheFormat, format_for
from engine_cpu.layout import static_shape

_TOKENS: Final = {4: 2, 3: 1}
"""The dimension of tokens in keys and values of [B, H, S, D], and of [B, S, H * D]."""
_ATTENTIONS: Final = frozenset({"Attention", "FusedAttention"})
_KEYS_AND_VALUES: Final = (1, 2)
_PASTS: Final = (4, 5)
_PRESENTS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class InPlace:
    """A variable whose value is in the memory of the next one.

    The memory begins with the dimension that grows, so that the distances of elements do not depend on lengths.

    Attributes:
        parameter: the index of the model's input that reads the variable.
        result: the index of the output that gives the next value.
        past: the value that the input has.
        present: the value that the output gets: `past` and what is appended.
        axis: the dimension that grows.
        format: how its memory keeps rows of keys and values.
        prolonged: `past` with room for what is written at positions that the model computes; None if it is appended.
    """

    parameter: int
    result: int
    past: Output
    present: Output
    axis: int
    format: CacheFormat
    prolonged: Output | None = None

    @property
    def is_assumed(self) -> bool:
        """Whether the plan assumes that what the model writes comes behind the past, and fails otherwise."""
        return self.prolonged is not None

    @property
    def values(self) -> tuple[Output, ...]:
        """The values that are in the memory of the variable."""
        return tuple(value for value in (self.past, self.prolonged, self.present) if value is not None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the next value."""
        return static_shape(self.present)

    @property
    def count(self) -> int:
        """How many positions are appended."""
        return self.shape[self.axis] - self.past_length

    @property
    def past_length(self) -> int:
        """How many positions there are before."""
        return static_shape(self.past)[self.axis]

    @property
    def strides(self) -> tuple[int, ...]:
        """The distances, in elements of the format, along the dimensions of the value."""
        others = [length for axis, length in enumerate(self.kept_shape) if axis != self.axis]
        strides = [math.prod(others[index + 1 :]) for index in range(len(others))]
        strides.insert(self.axis, math.prod(others))
        return tuple(strides)

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape of the next value in elements of the format."""
        *others, size = self.shape
        return (*others, self.format.row(size))

    @property
    def nbytes(self) -> int:
        """The bytes of the next value."""
        return self.format.element_bytes * math.prod(self.kept_shape)


def variables_in_place(graph: Model, wanted: CacheFormat = F32) -> list[InPlace]:
    """The variables of a graph of known lengths to which its nodes can append in place, in a format if possible.

    The past is read only by the node that appends, a Concat or an Attention, and the result only by attentions.
    """
    parameters = {parameter.friendly_name: index for index, parameter in enumerate(graph.parameters)}
    results = {result.friendly_name: index for index, result in enumerate(graph.results)}
    return list(_found(graph, parameters, results, wanted))


def _found(graph: Model, parameters: dict[str, int], results: dict[str, int], wanted: CacheFormat) -> Iterator[InPlace]:
    for variable in graph.variables:
        index, result = parameters[variable.parameter], results[variable.result]
        past, present = graph.parameters[index].output(0), graph.results[result].input_value(0)
        if variable.axis is None or past.element_type is not f32 or len(past.target_inputs) != 1:
            continue
        if _TOKENS.get(len(past.shape)) != variable.axis:
            continue
        (reader,) = past.target_inputs
        if not _is_read_by_attentions(present):
            continue
        if _appends(reader, present, variable.axis):
            yield InPlace(index, result, past, present, variable.axis, format_for(wanted, len(past.shape)))
        elif _prolongs(reader, present, variable.axis):
            kept = format_for(wanted, len(past.shape))
            yield InPlace(index, result, past, present, variable.axis, kept, reader.node.output(0))


def _appends(reader: Input, present: Output, axis: int) -> bool:
    """Whether the only reader of the past makes the next value of it."""
    node = reader.node
    if node is not present.node or node.domain:
        return False
    if node.op_type == "Concat":
        return reader.index == 0 and node.num_inputs == 2 and ConcatSpec.of(node).axis == axis
    pairs = zip(_PASTS, _PRESENTS, strict=True)
    return node.op_type == "Attention" and (reader.index, present.index) in pairs


def _prolongs(reader: Input, present: Output, axis: int) -> bool:
    """Whether the next value is the past, lengthened for what is written into it, as by GroupQueryAttention."""
    longer, writer = reader.node, present.node
    if longer.op_type != "Concat" or longer.domain or reader.index or longer.num_inputs != 2:
        return False
    if writer.op_type != "TensorScatter" or writer.domain or not writer.has_input(2):
        return False
    spec, room = TensorScatterSpec.of(writer), longer.input_value(1)
    if spec.past != longer.output(0) or spec.past.num_consumers != 1 or spec.mode != "linear":
        return False
    is_filled = static_shape(room)[axis] == static_shape(spec.update)[axis]
    return is_filled and ConcatSpec.of(longer).axis == axis == spec.axis


def _is_read_by_attentions(present: Output) -> bool:
    results = 0
    for target in present.target_inputs:
        if target.node.op_type == "Result":
            results += 1
        elif target.node.op_type not in _ATTENTIONS or target.index not in _KEYS_AND_VALUES:
            return False
    return results == 1


def without(values: Sequence[Output], states: Sequence[InPlace]) -> tuple[Output, ...]:
    """The values that are not those of variables in place."""
    held = {value for state in states for value in state.values}
    return tuple(value for value in values if value not in held)
