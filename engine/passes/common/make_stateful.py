"""`MakeStateful`: pairs of inputs and outputs, such as the keys of past and present tokens, become variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from engine.errors import GraphError, PassError, TypeInferenceError
from engine.ir import Dimension, Model, Parameter, PartialShape, Result, TensorType, Variable, as_dimension
from engine.passes.base import ModelPass
from engine.passes.common.state_axes import Appended, appended, is_window, written_axis
from engine.startup import dataclass

_PATTERNS: Final = (
    (re.compile(r"past_key_values([._].+)"), ("present{}", "present_key_values{}")),
    (re.compile(r"past([._].+)"), ("present{}",)),
    (re.compile(r"past()"), ("present{}",)),
    (re.compile(r"((?:key|value)_cache[._].+)"), ("updated_{}",)),
)
"""Names of inputs, and of their outputs: of Optimum, onnxruntime-genai and onnxruntime's transformer tools, and of
Mobius, whose decoders write with TensorScatter."""


class MakeStateful(ModelPass):
    """Makes inputs and outputs that an application would pass from one inference to the next variables of the model.

    A compiled network then shows neither: its requests keep the values. A variable whose output appends to its input
    (Concat, or Attention with a past) grows along that dimension, from length 0 unless stated otherwise. One into which
    the model writes at positions (TensorScatter, ScatterND, ScatterElements) keeps its length, and begins with zeros.

    Not part of any pipeline: run it on a model before compiling it. Raises `PassError` if the model has no pairs, if
    they contradict each other, or for a bound that is not a length.

    Args:
        pairs: the pairs: `Variable`s, or a mapping of inputs' names to outputs' names. By default they are found by
            the names that exporters give them, such as `past_key_values.0.key` and `present.0.key`; a model that
            already has variables, from its file, is left as it is.
        bound: the greatest length of the variables that grow, such as the positions that the model was trained for; or
            the length of those into which the model writes, where the model does not state it.
    """

    def __init__(
        self, pairs: Iterable[Variable] | Mapping[str, str] | None = None, *, bound: int | None = None
    ) -> None:
        super().__init__()
        self._pairs = pairs if pairs is None or isinstance(pairs, Mapping) else list(pairs)
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, (int, np.integer)) or bound < 0):
            raise PassError(f"{self.name}: bound is {bound!r:.80}; expected a length of 0 or more, or None")
        self._bound = None if bound is None else int(bound)

    def run_on_model(self, model: Model) -> bool:
        """Add the variables. Raises `PassError` if there are none to add, or a pair does not fit."""
        if self._pairs is None and model.variables:
            return False
        try:
            found = list(self._variables(model))
            for variable in found:
                model.add_variable(variable)
        except GraphError as e:
            raise PassError(f"{self.name}: {e}") from e
        if not found:
            inputs = ", ".join(f"`{p.friendly_name}`" for p in model.parameters) or "none"
            raise PassError(
                f"{self.name}: no input of model `{model.name}` has the name of a past value for which there is an "
                f"output; inputs: {inputs}; name the pairs: MakeStateful({{input: output}})"
            )
        self.rewrites = len(found)
        return True

    def _variables(self, model: Model) -> Iterator[Variable]:
        if self._pairs is not None and not isinstance(self._pairs, Mapping):
            yield from self._pairs
            return
        pairs = _pairs_by_name(model) if self._pairs is None else self._pairs
        others = [p for p in model.parameters if p.friendly_name not in pairs]
        found = [_Pair.of(model.parameter(name), model.result(output)) for name, output in pairs.items()]
        _name_lengths(model, found, others)
        tied = _symbols_of(others)
        _state_lengths(model, found, tied)
        _require_lengths(model, found, tied)
        for pair in found:
            yield _variable(pair, tied, self._bound)


@dataclass(frozen=True, slots=True)
class _Pair:
    """An input and the output that gives its next value."""

    parameter: Parameter
    result: Result
    appended: Appended | None
    written: int | None
    is_window: bool

    @classmethod
    def of(cls, parameter: Parameter, result: Result) -> _Pair:
        read = parameter.type
        if not isinstance(read, TensorType) or read.shape.rank.is_dynamic:
            raise GraphError(f"input `{parameter.friendly_name}` is {read}; a variable must be a tensor of known rank")
        values = parameter.output(0), result.input_value(0)
        grown = appended(*values)
        written = written_axis(*values) if grown is None else None
        return cls(parameter, result, grown, written, grown is None and written is None and is_window(*values))

    @property
    def name(self) -> str:
        """The name of the input."""
        return self.parameter.friendly_name

    @property
    def shape(self) -> PartialShape:
        """The shape of the input."""
        return self.parameter.output(0).shape

    @property
    def axis(self) -> int | None:
        """The dimension that grows."""
        return None if self.appended is None else self.appended.axis

    @property
    def known(self) -> list[PartialShape]:
        """Shapes with the lengths of the input, except along the dimension that grows."""
        given = self.result.input_value(0).shape
        others = () if self.appended is None else self.appended.shapes
        return [shape for shape in (given, *others) if shape.rank == self.shape.rank]


def _name_lengths(model: Model, pairs: Sequence[_Pair], others: Sequence[Parameter]) -> None:
    """Give unnamed lengths of the other inputs a symbol if states also have them, such as the batch.

    Without one, nothing says that a length without a name equals the other input's.
    """
    tied = _symbols_of(others)
    if not any(_unknown_axes(pair, tied) for pair in pairs):
        return
    taken = _symbols_of(model.parameters)
    named = {parameter.friendly_name: _with_symbols(parameter, taken) for parameter in others}
    probe = model.clone()
    try:
        probe.reshape({name: PartialShape(dims) for name, dims in named.items() if dims})
    except TypeInferenceError:
        return  # nothing is known about the lengths
    told = set()
    for pair in pairs:
        made = probe.result(pair.result.friendly_name).input_value(0).shape
        if made.rank == pair.shape.rank:
            told |= {made[axis].symbol for axis in _unknown_axes(pair, tied)}
    shapes = {}
    for parameter in others:
        dims = named[parameter.friendly_name]
        if any(dim.symbol in told - taken for dim in dims):
            old = parameter.output(0).shape
            shapes[parameter.friendly_name] = PartialShape(
                [new if new.symbol in told else dim for new, dim in zip(dims, old, strict=True)]
            )
    if shapes:
        model.reshape(shapes)


def _with_symbols(parameter: Parameter, taken: set[str]) -> list[Dimension]:
    """The lengths of an input, those without a symbol with a new one; none if it is not a tensor of known rank."""
    kind, dims = parameter.type, []
    if not isinstance(kind, TensorType) or kind.shape.rank.is_dynamic:
        return []
    for axis, dim in enumerate(kind.shape):
        name = f"{parameter.friendly_name}.{axis}"
        while name in taken:
            name += "_"
        if dim.is_static or dim.symbol is not None:
            dims.append(dim)
        elif dim.max is None:
            dims.append(Dimension.at_least(dim.min, name))
        else:
            dims.append(Dimension(dim.min, dim.max, name))
    return dims


def _state_lengths(model: Model, pairs: Sequence[_Pair], tied: set[str]) -> None:
    """Give inputs the lengths that the model determines elsewhere, such as the size of heads.

    An exporter may name it instead ("kv_cache_dim"), so that the input alone does not determine it.
    """
    told = {pair.name: [_known_length(pair, axis, tied) for axis in range(len(pair.shape))] for pair in pairs}
    by_symbol: dict[str, set[int]] = {}
    for pair in pairs:
        for old, new in zip(pair.shape, told[pair.name], strict=True):
            if old.symbol is not None and new.is_static:
                by_symbol.setdefault(old.symbol, set()).add(new.min)
    shapes = {}
    for pair in pairs:
        for axis, dim in enumerate(told[pair.name]):
            others = by_symbol.get(dim.symbol or "", set())
            if dim.is_dynamic and axis != pair.axis and len(others) == 1:
                told[pair.name][axis] = as_dimension(next(iter(others)))
        if tuple(told[pair.name]) != pair.shape.dims:
            shapes[pair.name] = PartialShape(told[pair.name])
    if shapes:
        model.reshape(shapes)


def _known_length(pair: _Pair, axis: int, tied: set[str]) -> Dimension:
    """A length of the input: its own, or the one of the values that it is joined with."""
    own = pair.shape[axis]
    if own.is_static or own.symbol in tied or axis == pair.axis:
        return own
    others = [shape[axis] for shape in pair.known]
    fixed = [dim for dim in others if dim.is_static]
    return next(iter((*fixed, *(dim for dim in others if dim.symbol in tied))), own)


def _pairs_by_name(model: Model) -> dict[str, str]:
    outputs = {result.friendly_name for result in model.results}
    pairs: dict[str, str] = {}
    for parameter in model.parameters:
        name = parameter.friendly_name
        for pattern, templates in _PATTERNS:
            match = pattern.fullmatch(name)
            found = [] if match is None else [t.format(match[1]) for t in templates if t.format(match[1]) in outputs]
            if len(found) > 1:
                raise GraphError(f"input `{name}` matches the outputs `{found[0]}` and `{found[1]}`; name the pairs")
            if found:
                pairs[name] = found[0]
                break
    return pairs


def _symbols_of(parameters: Iterable[Parameter]) -> set[str]:
    """The symbols of the lengths of inputs."""
    types = [parameter.type for parameter in parameters]
    shapes = [each.shape for each in types if isinstance(each, TensorType) and each.shape.rank.is_static]
    return {dim.symbol for shape in shapes for dim in shape if dim.symbol is not None}


def _variable(pair: _Pair, tied: set[str], bound: int | None) -> Variable:
    name, read, axis, written = pair.name, pair.parameter.type, pair.axis, pair.written
    assert isinstance(read, TensorType)
    # A length that follows from other inputs is repeated from 1; one that changes in another way begins with 0.
    lengths = [
        dim.min if dim.is_static else int(dim.symbol in tied and i not in (axis, written))
        for i, dim in enumerate(read.shape)
    ]
    if written is not None:
        lengths[written] = _fixed_length(name, read.shape[written], bound)
        if 0 in lengths:
            raise GraphError(
                f"input `{name}` is {read}, into which the model writes, and no other input determines the length of "
                f"dimension {lengths.index(0)}; export it with a symbol that other inputs have, or with a fixed length"
            )
    batch = next(
        (i for i, dim in enumerate(read.shape) if dim.symbol in tied and i != written),
        0 if len(read.shape) > 1 else None,
    )
    return Variable(
        name,
        name,
        pair.result.friendly_name,
        np.zeros(lengths, read.element_type.numpy),
        axis,
        bound if axis is not None else None,
        None if batch in (axis, written) else batch,
        pair.is_window or (pair.appended is not None and pair.appended.is_placed),
        written,
    )


def _require_lengths(model: Model, pairs: Sequence[_Pair], tied: set[str]) -> None:
    """Raise `GraphError` for a length that stays the same, and that nothing determines."""
    unknown = {pair.name: _unknown_axes(pair, tied) for pair in pairs if pair.written is None}
    is_grown = {pair.name: pair.axis is not None for pair in pairs}
    empty = _empty_axes(model, pairs, {name: axes for name, axes in unknown.items() if axes and not is_grown[name]})
    for pair in pairs:
        for axis in unknown.get(pair.name, []) if is_grown[pair.name] else empty.get(pair.name, []):
            raise GraphError(
                f"input `{pair.name}` is {pair.parameter.type}, and neither another input nor the values that it is "
                f"joined with determine the length of dimension {axis}; state it first: "
                f"model.reshape({{{pair.name!r}: [...]}})"
            )


def _unknown_axes(pair: _Pair, tied: set[str]) -> list[int]:
    """The dimensions that do not grow, and whose lengths neither the input nor another one determines."""
    return [
        axis for axis, dim in enumerate(pair.shape) if dim.is_dynamic and axis != pair.axis and dim.symbol not in tied
    ]


def _empty_axes(model: Model, pairs: Sequence[_Pair], unknown: dict[str, list[int]]) -> dict[str, list[int]]:
    """The dimensions that remain of length 0 in all inferences if the unknown ones begin with it.

    The types of a model with these lengths show it. A dimension that becomes longer, such as of a window that slides
    over what it is joined with, may make others longer in the next inference.
    """
    while unknown:
        probe = model.clone()
        shapes = {pair.name: list(pair.shape) for pair in pairs if pair.name in unknown}
        for name, axes in unknown.items():
            for axis in axes:
                shapes[name][axis] = as_dimension(0)
        try:
            probe.reshape(shapes)
        except TypeInferenceError:  # not silently empty: the first inference reports the error
            return {}
        made = {pair.name: probe.result(pair.result.friendly_name).input_value(0).shape for pair in pairs}
        still = {
            name: [axis for axis in axes if _is_empty(made[name], shapes[name], axis)] for name, axes in unknown.items()
        }
        still = {name: axes for name, axes in still.items() if axes}
        if still == unknown:
            break
        unknown = still
    return unknown


def _is_empty(made: PartialShape, shape: Sequence[Dimension], axis: int) -> bool:
    return made.rank.is_static and len(made) == len(shape) and made[axis].is_static and made[axis].min == 0


def _fixed_length(name: str, dim: Dimension, bound: int | None) -> int:
    """The length of a value into which the model writes."""
    if dim.is_dynamic and not bound:
        raise GraphError(
            f"input `{name}`, into which the model writes, has an unknown length; pass it: MakeStateful(bound=...)"
        )
    if dim.is_static and bound not in (None, dim.min):
        raise GraphError(
            f"input `{name}` has a fixed length of {dim.min}, into which the model writes; got bound={bound}"
        )
    return dim.min if bound is None else bound
