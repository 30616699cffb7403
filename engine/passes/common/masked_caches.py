"""`MaskedCaches`: sequences lie anywhere in the caches of GroupQueryAttention, where `attention_mask` says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from engine import ops
from engine.errors import GraphError, PassError
from engine.ir import Constant, Model, Node, Output, Variable
from engine.ops.gather import TensorScatterSpec
from engine.ops.slice import ConcatSpec
from engine.passes.base import ModelPass
from engine.passes.common.state_axes import is_window
from engine.passes.runtime_info import copy_runtime_info

_VIEWS: Final = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_NEVER: Final = np.iinfo(np.int64).max
"""The position of a column that has no token: behind all queries."""


class MaskedCaches(ModelPass):
    """Lets `attention_mask` say which columns of the caches have tokens of a sequence, instead of how many they are.

    GroupQueryAttention writes the keys of each sequence behind those that it has, at the beginning of its caches. So
    sequences of different lengths write at different places, which copies the caches, and none can join a batch. After
    this pass, the new keys of all sequences are appended; a query sees the columns that the mask has, and positions
    count these. Results for masks of ones stay the same, also those for prompts with padding behind them; a later mask
    then has 0 for the columns of the padding, and 1 for the columns of the new tokens.

    Not part of any pipeline: run it on a model with variables (`MakeStateful`) before compiling it for a `Scheduler`.
    False if no variable is written at positions that the model computes. Raises `PassError`, and changes nothing, if
    the positions do not follow from the sum of the mask, or if the number of columns has another effect, as on the
    factors of a LongRoPE.

    Args:
        mask: the name of the mask [batch, columns].
    """

    def __init__(self, mask: str = "attention_mask") -> None:
        super().__init__()
        self.mask = mask

    def run_on_model(self, model: Model) -> bool:
        """Replace the writes, the masks and the variables."""
        probe = model.clone()
        if not self._rewrite(probe):
            return False
        self._require_no_columns(probe)
        self.rewrites = self._rewrite(model)
        return True

    def _rewrite(self, model: Model) -> int:
        if not model.variables:
            raise PassError(f"{self.name}: model `{model.name}` has no variables; run MakeStateful before")
        placed = [variable for variable in model.variables if variable.is_placed]
        if not placed:
            return 0
        try:
            mask = model.parameter(self.mask).output(0)
        except GraphError as e:
            raise PassError(f"{self.name}: {e}") from e
        # A window has the last tokens of each sequence, wherever the sequence is.
        writes = [self._write(model, each, mask) for each in placed if not _is_window(model, each)]
        keys = {keys for writer, _ in writes for keys in self._keys(writer)}
        positions = _positions(mask)
        for output in keys:
            output.replace(positions)
        for writer, past in writes:
            axis = TensorScatterSpec.of(writer).axis
            appended = ops.create("Concat", [past, writer.input_value(1)], {"axis": axis})
            copy_runtime_info(writer, appended)
            writer.output(0).replace(appended.output(0))
        _take_given_positions(model, mask)
        for variable in model.variables:
            model.remove_variable(variable.name)
            model.add_variable(replace(variable, is_placed=False, is_masked=True))
        for node in model.ordered_nodes():
            node.infer_types()
        return len(placed)

    def _write(self, model: Model, variable: Variable, mask: Output) -> tuple[Node, Output]:
        """The node that writes into a variable, lengthened before, and the variable's value."""
        past, writer = model.parameter(variable.parameter).output(0), model.result(variable.result).input_value(0).node
        longer = writer.input_value(0).node if _is(writer, "TensorScatter") else None
        if longer is None or not _is(longer, "Concat") or longer.input_value(0) != past or not writer.has_input(2):
            raise self._other(variable, writer)
        spec = TensorScatterSpec.of(writer)
        start = writer.input_value(2)
        if spec.mode != "linear" or spec.axis != ConcatSpec.of(longer).axis or not _is_start(start, mask):
            raise self._other(variable, writer)
        return writer, past

    def _other(self, variable: Variable, writer: Node) -> PassError:
        return PassError(
            f"{self.name}: variable `{variable.name}` is written by {writer}; expected room behind it, and the number "
            f"of tokens in `{self.mask}` before the new ones as the place, as for GroupQueryAttention in the models of "
            "onnxruntime-genai's builder"
        )

    def _keys(self, writer: Node) -> Iterator[Output]:
        """The numbers of the columns, which attentions to a value compare with the positions of the queries."""
        start = writer.input_value(2)
        for node, index in _readers(writer.output(0)):
            compared = list(_compared(node.input_value(3))) if _is(node, "Attention") and node.has_input(3) else []
            if not compared or index not in (1, 2):
                raise PassError(
                    f"{self.name}: {node} reads the cache without a mask of the positions up to the query's own; "
                    "expected attentions with one"
                )
            for keys, own in compared:
                if not _is_own(own, start) or not _counts_columns(keys):
                    raise PassError(
                        f"{self.name}: {node} compares {keys.node} with {own.node}; expected the columns of the cache, "
                        "and the positions of the queries"
                    )
                yield keys

    def _require_no_columns(self, model: Model) -> None:
        """Raise unless no more depends on how many columns there are."""
        growing = {variable.parameter for variable in model.variables if variable.is_growing}
        sources = {parameter.output(0) for parameter in model.parameters if parameter.friendly_name in growing}
        sources |= {model.result(variable.result).input_value(0) for variable in model.variables if variable.is_growing}
        sources.add(model.parameter(self.mask).output(0))
        for node in model.ordered_nodes():
            if _gives_length(node) and _viewed(node.input_value(0)) in sources:
                raise PassError(
                    f"{self.name}: {node} has the number of columns, on which other results than the keys depend; they "
                    "would differ for a sequence beside longer ones: compute each alone, by Scheduler(is_batched=False)"
                )


def _is_window(model: Model, variable: Variable) -> bool:
    return is_window(model.parameter(variable.parameter).output(0), model.result(variable.result).input_value(0))


def _is(node: Node, op_type: str) -> bool:
    return node.op_type == op_type and not node.domain


def _viewed(value: Output) -> Output:
    """The value whose elements this one has, perhaps of another type."""
    while value.node.op_type in _VIEWS and not value.node.domain:
        value = value.node.input_value(0)
    return value


def _operands(value: Output, op_type: str, constant: int | None = None) -> tuple[Output, Output] | None:
    """The operands of the node of a value, if it is of this kind, and the second one is the constant."""
    node = _viewed(value).node
    if not _is(node, op_type) or node.num_inputs != 2:
        return None
    if constant is not None and not _is_constant(node.input_value(1), constant):
        return None
    return node.input_value(0), node.input_value(1)


def _is_constant(value: Output, number: int) -> bool:
    node = _viewed(value).node
    return isinstance(node, Constant) and node.data.size == 1 and int(node.data.reshape(())) == number


def _is_start(value: Output, mask: Output) -> bool:
    """Whether a value is max(sum of the mask - 1 + 1 - new tokens, 0)."""
    start = _operands(value, "Max", 0)
    difference = None if start is None else _operands(start[0], "Sub")
    count = None if difference is None else _operands(difference[0], "Add", 1)
    last = None if count is None else _operands(count[0], "Sub", 1)
    if last is None or difference is None:
        return False
    total, length = _viewed(last[0]).node, _viewed(difference[1]).node
    if not _is(total, "ReduceSum") or _viewed(total.input_value(0)) != mask or not total.has_input(1):
        return False
    return any(_is_constant(total.input_value(1), axis) for axis in (1, -1)) and _is_length(length)


def _is_length(node: Node) -> bool:
    """Whether a node gives the second dimension, of new tokens."""
    return _is(node, "Shape") and (node.attributes.get("start"), node.attributes.get("end")) == (1, 2)


def _gives_length(node: Node) -> bool:
    """Whether a node gives the number of columns, if its input has them: of a mask [B, columns], or of keys and values
    [B, heads, columns, size].
    """
    if not _is(node, "Shape"):
        return _is(node, "Size")
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    is_known = start >= 0 and (end is None or end >= 0)
    return not is_known or len(node.input_value(0).shape) != 4 or (start <= 2 and (end is None or end > 2))


def _readers(present: Output) -> Iterator[tuple[Node, int]]:
    """The nodes that read a cache, perhaps with one more row behind it, as for the sink of an attention."""
    for target in present.target_inputs:
        node = target.node
        if _is(node, "Concat") and target.index == 0 and node.num_inputs == 2:
            yield from _readers(node.output(0))
        elif node.op_type != "Result" and not (_is(node, "Shape") and not _gives_length(node)):
            yield node, target.index


def _compared(mask: Output) -> Iterator[tuple[Output, Output]]:
    """What comparisons of positions in a mask compare: columns, and the last ones that are seen."""
    seen, waiting = set(), [mask]
    while waiting:
        value = waiting.pop()
        node = value.node
        if value in seen or node.domain:
            continue
        seen.add(value)
        if node.op_type == "LessOrEqual":
            yield node.input_value(0), node.input_value(1)
        elif node.op_type in ("And", "Where", "Concat", "Expand", "Cast"):
            count = 2 if node.op_type == "And" else 1  # the first one has the condition, or the keys
            waiting += [node.input_value(index) for index in range(count)]


def _is_own(value: Output, start: Output) -> bool:
    """Whether a value has the positions of queries, which begin at `start`."""
    own = _operands(value, "Add")
    return own is not None and _viewed(own[0]) == _viewed(start) and _is(own[1].node, "Range")


def _counts_columns(keys: Output) -> bool:
    """Whether `keys` has the numbers of all columns: those of a past, and of the room behind it."""
    node = keys.node
    if not _is(node, "Range") or not _is_constant(node.input_value(0), 0) or not _is_constant(node.input_value(2), 1):
        return False
    total = _operands(node.input_value(1), "Add")
    shape = None if total is None else _viewed(total[0]).node
    return shape is not None and _is(shape, "Shape") and _is(shape.input_value(0).node, "Parameter")


def _positions(mask: Output) -> Output:
    """The position of each column's token, [B, 1, 1, columns]."""

    def constant(values: object) -> Output:
        return Constant(np.array(values, np.int64)).output(0)

    is_token = ops.create("Cast", [mask], {"to": 9}).output(0)
    ones = ops.create("Cast", [is_token], {"to": 7}).output(0)
    count = ops.create("CumSum", [ones, constant(1)]).output(0)
    positions = ops.create("Sub", [count, constant(1)]).output(0)
    found = ops.create("Where", [is_token, positions, constant(_NEVER)]).output(0)
    return ops.create("Unsqueeze", [found, constant([1, 2])]).output(0)


def _take_given_positions(model: Model, mask: Output) -> None:
    """Let the given positions hold for a first prompt, too, where GroupQueryAttention counts from the first one."""
    for node in model.ordered_nodes():
        if not _is(node, "Where"):
            continue
        lengths = _operands(node.input_value(0), "Equal")
        first = _operands(node.input_value(1), "Add")
        if lengths is None or first is None or not _is(_viewed(first[0]).node, "Slice"):
            continue
        column = _viewed(lengths[1]).node
        shape = column.input_value(0) if _is(column, "Gather") else column.output(0)
        is_total = _is(shape.node, "Shape") and shape.node.input_value(0) == mask
        if is_total and _viewed(first[0]).node.input_value(0) == node.input_value(2):
            node.output(0).replace(node.input_value(2))
