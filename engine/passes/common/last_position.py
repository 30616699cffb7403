"""`LastPosition`: a language model computes logits for the last token, or the last few ones, only."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine import ops
from engine.errors import GraphError, PassError
from engine.ir import Constant, Model, Node, Output, TensorType
from engine.ops.traits import traits_of
from engine.passes.base import ModelPass
from engine.passes.runtime_info import copy_runtime_info

_TOKENS: Final = 1
"""The dimension of tokens in [batch, tokens, width]."""


class LastPosition(ModelPass):
    """Makes an output [batch, tokens, width] of a language model, such as its logits, the output of the last tokens.

    The product that computes it, which for a large vocabulary takes a tenth of a prompt's time, then has one row for
    each sequence. The output becomes [batch, 1, width]; others, and the variables, stay as they are. Generating needs
    no more, except for batches of prompts of different lengths, whose last tokens are at different positions.

    A `Generator` with a draft needs the logits of the proposed tokens, and of the one before them: for at most 8
    proposed tokens, `LastPosition(count=9)`. The output is then [batch, the lesser of tokens and 9, width].

    Not part of any pipeline: run it on a model before compiling it. Raises `PassError` if the output is not computed
    by a product [batch, tokens, inner] x [inner, width] and elementwise operations with constants, and for a model
    that computes another number of last tokens already. The matrix may be computed, such as the transposed table of
    embeddings of a model that shares both.

    Args:
        output: the name of the output.
        count: the number of tokens.
    """

    def __init__(self, output: str = "logits", count: int = 1) -> None:
        super().__init__()
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise PassError(f"{self.name}: count is {count!r:.80}; expected a number of tokens, 1 or more")
        self.output, self.count = output, count

    def run_on_model(self, model: Model) -> bool:
        """Insert a Slice before the product; False if it is there already."""
        try:
            result = model.result(self.output)
        except GraphError as e:
            raise PassError(f"{self.name}: {e}") from e
        product, later = self._product(result.input_value(0))
        source = product.input_value(0)
        if (present := _last_of(source.node)) is not None:
            if present != self.count:
                raise PassError(
                    f"{self.name}: output `{self.output}` has the last {present} tokens already; expected {self.count} "
                    "or all: read the model again"
                )
            return False
        bounds = (Constant(np.array([value], np.int64)) for value in (-self.count, np.iinfo(np.int64).max, _TOKENS))
        last = ops.Slice(source, *bounds)
        copy_runtime_info(product, last)
        product.input(0).replace_source_output(last.output(0))
        for node in (product, *later, result):
            node.infer_types()
        self.rewrites = 1
        return True

    def _product(self, value: Output) -> tuple[Node, list[Node]]:
        """The product, and the operations after it, in order, which keep positions apart."""
        node = value.node
        later: list[Node] = []
        while traits_of(node).pointwise:
            computed = [each for each in node.input_values if each is not None and not isinstance(each.node, Constant)]
            if len(computed) != 1 or any(_has_tokens(each) for each in node.input_values if each not in computed):
                break
            later.insert(0, node)
            node = computed[0].node
        is_product = node.op_type == "MatMul" and not node.domain
        if not is_product or _rank(node.input_value(0)) != 3 or _rank(node.input_value(1)) != 2:
            raise PassError(
                f"{self.name}: output `{self.output}` is computed by {node}; expected a MatMul of [batch, tokens, "
                "inner] with a matrix, followed by elementwise operations with constants"
            )
        for each in (node, *later):
            if each.output(0).num_consumers != 1:
                raise PassError(f"{self.name}: {each} is also read by others than output `{self.output}`")
        return node, later


def _rank(value: Output) -> int | None:
    known = value.type
    return len(known.shape) if isinstance(known, TensorType) and known.shape.rank.is_static else None


def _has_tokens(value: Output | None) -> bool:
    """Whether a constant operand may differ between tokens."""
    rank = None if value is None else _rank(value)
    return value is not None and (rank is None or (rank > 1 and value.shape[-2] != 1))


def _last_of(node: Node) -> int | None:
    """How many last tokens a Slice takes; None if it is another node."""
    if node.op_type != "Slice" or node.domain or not node.has_input(3):
        return None
    given = [node.input_value(index).node for index in (1, 2, 3)]
    start, end, axis = (each.data.tolist() if isinstance(each, Constant) else [] for each in given)
    is_last = axis == [_TOKENS] and end == [np.iinfo(np.int64).max] and len(start) == 1 and start[0] < 0
    return -start[0] if is_last else None
