"""`MakeStateful`: pairs of inputs and outputs, such as the keys of past and present tokens, become variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from engine.errors import GraphError, PassError
from engine.ir import Model, Output, Parameter, Result, TensorType, Variable
from engine.ops.slice import ConcatSpec
from engine.passes.base import ModelPass

_PATTERNS: Final = (
    (re.compile(r"past_key_values([._].+)"), ("present{}", "present_key_values{}")),
    (re.compile(r"past([._].+)"), ("present{}",)),
    (re.compile(r"past()"), ("present{}",)),
)
"""Names of inputs, and of their outputs: of Optimum, onnxruntime-genai and onnxruntime's transformer tools."""

_TOKENS: Final = 2
"""The dimension of tokens in the keys and values of Attention: [B, H, tokens, D]."""


class MakeStateful(ModelPass):
    """Makes inputs and outputs that an application would pass from one inference to the next variables of the model.

    A compiled network then shows neither: its requests keep the values. A variable whose output appends to its input
    (Concat, or Attention with a past) grows along that dimension, from length 0 unless told otherwise.

    Not part of any pipeline: run it on a model before compiling it. Raises `PassError` if the model has no pairs, or
    if they contradict each other.

    Args:
        pairs: the pairs: `Variable`s, or a mapping of inputs' names to outputs' names. By default they are found by
            the names that exporters give them, such as `past_key_values.0.key` and `present.0.key`; a model that
            already has variables, from its file, is left as it is.
        bound: the greatest length of the variables that grow, such as the positions that the model was trained for.
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
    # A length that other inputs tell is repeated from 1; any other unknown length begins with 0.
    initial = np.zeros(
        [dim.min if dim.is_static else int(dim.symbol in tied and i != axis) for i, dim in enumerate(read.shape)],
        read.element_type.numpy,
    )
    batch = next((i for i, dim in enumerate(read.shape) if dim.symbol in tied), 0 if len(read.shape) > 1 else None)
    return Variable(
        name,
        name,
        result.friendly_name,
        initial,
        axis,
        bound if axis is not None else None,
        None if batch == axis else batch,
        is_placed and axis is not None,
    )


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
