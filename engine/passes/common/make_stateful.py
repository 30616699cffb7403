"""`MakeStateful`: pairs of inputs and outputs, such as the keys of past and present tokens, become variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from engine.errors import GraphError, PassError
from engine.ir import Dimension, Model, Node, Output, Parameter, Result, TensorType, Variable
from engine.ops.gather import ScatterElementsSpec, ScatterNDSpec, TensorScatterSpec
from engine.ops.slice import ConcatSpec
from engine.ops.transpose import TransposeSpec
from engine.passes.base import ModelPass

_PATTERNS: Final = (
    (re.compile(r"past_key_values([._].+)"), ("present{}", "present_key_values{}")),
    (re.compile(r"past([._].+)"), ("present{}",)),
    (re.compile(r"past()"), ("present{}",)),
    (re.compile(r"((?:key|value)_cache[._].+)"), ("updated_{}",)),
)
"""Names of inputs, and of their outputs: of Optimum, onnxruntime-genai and onnxruntime's transformer tools, and of
Mobius, whose decoders write with TensorScatter."""

_TOKENS: Final = 2
"""The dimension of tokens in the keys and values of Attention: [B, H, tokens, D]."""


class MakeStateful(ModelPass):
    """Makes inputs and outputs that an application would pass from one inference to the next variables of the model.

    A compiled network then shows neither: its requests keep the values. A variable whose output appends to its input
    (Concat, or Attention with a past) grows along that dimension, from length 0 unless told otherwise. One into which
    the model writes at positions (TensorScatter, ScatterND, ScatterElements) keeps its length, and begins with zeros.

    Not part of any pipeline: run it on a model before compiling it. Raises `PassError` if the model has no pairs, or
    if they contradict each other.

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
        self._bound = bound

    def run_on_model(self, model: Model) -> bool:
        """Add the variables."""
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
        tied = _symbols_of([p for p in model.parameters if p.friendly_name not in pairs])
        for parameter, result in pairs.items():
            yield _variable(model.parameter(parameter), model.result(result), tied, self._bound)


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


def _variable(parameter: Parameter, result: Result, tied: set[str], bound: int | None) -> Variable:
    name, read = parameter.friendly_name, parameter.type
    if not isinstance(read, TensorType) or read.shape.rank.is_dynamic:
        raise GraphError(f"input `{name}` is {read}; a variable must be a tensor of known rank")
    axis, is_placed = _appended_axis(parameter.output(0), result.input_value(0))
    written = None if axis is not None else _written_axis(parameter.output(0), result.input_value(0))
    # A length that other inputs tell is repeated from 1; any other unknown length begins with 0.
    lengths = [
        dim.min if dim.is_static else int(dim.symbol in tied and i not in (axis, written))
        for i, dim in enumerate(read.shape)
    ]
    if written is not None:
        lengths[written] = _fixed_length(name, read.shape[written], bound)
        if 0 in lengths:
            raise GraphError(
                f"input `{name}` is {read}, into which the model writes, and no other input tells the length of "
                f"dimension {lengths.index(0)}; export it with a symbol that other inputs have, or with a fixed length"
            )
    batch = next(
        (i for i, dim in enumerate(read.shape) if dim.symbol in tied and i != written),
        0 if len(read.shape) > 1 else None,
    )
    return Variable(
        name,
        name,
        result.friendly_name,
        np.zeros(lengths, read.element_type.numpy),
        axis,
        bound if axis is not None else None,
        None if batch in (axis, written) else batch,
        is_placed and axis is not None,
        written,
    )


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


def _appended_axis(past: Output, present: Output) -> tuple[int | None, bool]:
    """The dimension along which `present` is `past` with more behind it, None if it is not; and whether it is placed.

    GroupQueryAttention appends room to the past, and writes into it at positions that it computes.
    """
    axis: int | None = None
    is_placed = False
    value = present
    while value != past:
        node = value.node
        if node.domain:
            return None, False
        if node.op_type == "Concat":
            own = ConcatSpec.of(node).axis
            if node.num_inputs > 1:
                if axis not in (None, own):
                    return None, False
                axis = own
        elif node.op_type == "Attention" and value.index in (1, 2) and node.has_input(3 + value.index):
            if axis not in (None, _TOKENS):
                return None, False
            axis = _TOKENS
            value = node.input_value(3 + value.index)
            continue
        elif node.op_type == "TensorScatter":
            is_placed = True
        elif node.op_type != "Identity":
            return None, False
        value = node.input_value(0)
    return axis, is_placed


def _written_axis(past: Output, present: Output) -> int | None:
    """The dimension along which `present` is `past` with positions that were written, None if it is anything else."""
    rank = len(past.shape)
    found: int | None = None
    axes = list(range(rank))  # those of the value, as axes of `present`
    value = present
    while value != past:
        node = value.node
        if node.domain or value.index or value.shape.rank != past.shape.rank:
            return None
        if node.op_type == "Transpose":
            order = TransposeSpec.of(node).order(rank)
            axes = [axes[order.index(axis)] for axis in range(rank)]
        elif node.op_type != "Identity":
            axis = _axis_of_write(node)
            if axis is None or found not in (None, axes[axis]):
                return None
            found = axes[axis]
        value = node.input_value(0)
    return found if axes == list(range(rank)) else None


def _axis_of_write(node: Node) -> int | None:
    """The dimension along which a node writes into its first input; None if it does anything else."""
    if node.op_type == "TensorScatter":
        spec = TensorScatterSpec.of(node)
        return spec.axis if spec.mode == "linear" else None
    if node.op_type == "ScatterElements":
        elements = ScatterElementsSpec.of(node)
        return elements.axis if elements.reduction == "none" else None
    if node.op_type == "ScatterND":
        slices = ScatterNDSpec.of(node)
        shape = slices.indices.shape
        is_of_first = shape.rank.is_static and len(shape) > 0 and shape[-1].is_static and shape[-1].min == 1
        return 0 if is_of_first and slices.reduction == "none" else None
    return None
