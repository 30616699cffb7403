"""Variables to which a plan appends in place: the keys and values of past tokens that an attention reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from engine.ir import Input, Model, Node, Output, f32
from engine.ops.gather import TensorScatterSpec
from engine.ops.slice import ConcatSpec
from engine.startup import dataclass
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
        past: the value that the input has, as f32.
        present: the value that the output gets, as f32: `past` and what is appended.
        axis: the dimension that grows.
        format: how its memory keeps rows of keys and values.
        casts: for a variable that is not f32, the values of the input and of the output, with `past` and `present`.
        prolonged: `past` with room for what is written at positions that the model computes; None if it is appended.
        bound: the most positions; None if it is not known.
    """

    parameter: int
    result: int
    past: Output
    present: Output
    axis: int
    format: CacheFormat
    casts: tuple[tuple[Output, Output], ...] = ()
    prolonged: Output | None = None
    bound: int | None = None

    @property
    def is_assumed(self) -> bool:
        """Whether the plan assumes that the model writes behind the past, and fails otherwise."""
        return self.prolonged is not None

    @property
    def values(self) -> tuple[Output, ...]:
        """The values that are in the memory of the variable."""
        values = (self.past, self.prolonged, self.present, *(port for port, _ in self.casts))
        return tuple(value for value in values if value is not None)

    @property
    def bypassed(self) -> tuple[Node, ...]:
        """The nodes that need no step, since the memory holds the values that they convert."""
        return tuple((port if port.node.op_type == "Cast" else value).node for port, value in self.casts)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the next value."""
        return static_shape(self.present)

    @property
    def count(self) -> int:
        """The number of positions that the step appends along `axis`."""
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
        ports = graph.parameters[index].output(0), graph.results[result].input_value(0)
        kept = format_for(wanted, ports[0].element_type, len(ports[0].shape))
        if variable.axis is None or kept is None or _TOKENS.get(len(ports[0].shape)) != variable.axis:
            continue
        # The values that are computed with, in f32.
        past, present = _widened(ports[0]), _before_narrowing(ports[1])
        if past is None or present is None or len(past.target_inputs) != 1 or not _is_read_by_attentions(present):
            continue
        (reader,) = past.target_inputs
        casts = tuple((port, value) for port, value in zip(ports, (past, present), strict=True) if port != value)
        found = InPlace(index, result, past, present, variable.axis, kept, casts, bound=variable.bound)
        if _appends(reader, present, variable.axis):
            yield found
        elif _prolongs(reader, present, variable.axis):
            yield replace(found, prolonged=reader.node.output(0))


def _widened(past: Output) -> Output | None:
    """A past as f32; None if others than one Cast read one that is stored in fewer bits."""
    if past.element_type is f32:
        return past
    (*others, reader) = past.target_inputs
    node = reader.node
    is_cast = not others and node.op_type == "Cast" and not node.domain
    return node.output(0) if is_cast and node.output(0).element_type is f32 else None


def _before_narrowing(present: Output) -> Output | None:
    """The f32 that becomes the next value; None if it is computed differently, or read by others."""
    if present.element_type is f32:
        return present
    node = present.node
    is_cast = node.op_type == "Cast" and not node.domain and len(present.target_inputs) == 1
    return node.input_value(0) if is_cast and node.input_value(0).element_type is f32 else None


def _appends(reader: Input, present: Output, axis: int) -> bool:
    """Whether the only reader of the past computes the next value from it."""
    node = reader.node
    if node is not present.node or node.domain:
        return False
    if node.op_type == "Concat":
        return reader.index == 0 and node.num_inputs == 2 and ConcatSpec.of(node).axis == axis
    pairs = zip(_PASTS, _PRESENTS, strict=True)
    return node.op_type == "Attention" and (reader.index, present.index) in pairs


def _prolongs(reader: Input, present: Output, axis: int) -> bool:
    """Whether the next value is the past, lengthened for the elements that are written into it, as by
    GroupQueryAttention.
    """
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
        if target.node.op_type == "Result" or _is_narrowed_result(target.node):
            results += 1
        elif target.node.op_type not in _ATTENTIONS or target.index not in _KEYS_AND_VALUES:
            return False
    return results == 1


def _is_narrowed_result(node: Node) -> bool:
    if node.op_type != "Cast" or node.domain:
        return False
    return [target.node.op_type for target in node.output(0).target_inputs] == ["Result"]


def without(values: Sequence[Output], states: Sequence[InPlace]) -> tuple[Output, ...]:
    """The values that do not belong to variables in place."""
    held = {value for state in states for value in state.values}
    return tuple(value for value in values if value not in held)
