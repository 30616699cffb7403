"""`AttentionFusion`: softmax(q k^T * scale + mask) v becomes the operator `Attention`, or an internal one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from engine import ops
from engine.ir import Dimension, Node, Output
from engine.ops.internal import FusedAttention
from engine.passes.common.attention_masks import Mask, as_mask
from engine.passes.common.transpose_merge import permutation, transposed
from engine.passes.fusion import (
    FusionPass,
    dims_of,
    float_attribute,
    has_one_exit,
    operation,
    replace_by,
    same_length,
    same_lengths,
    scalar,
)
from engine.passes.pattern import (
    Matcher,
    any_input,
    any_of,
    attrs_match,
    optional,
    rank_equals,
    wrap_const,
    wrap_type,
)
from engine.startup import dataclass


class AttentionFusion(FusionPass):
    """Recognises MatMul(Softmax(MatMul(q, k^T) * scale + mask), v) of tensors [B, H, S, D] as `Attention`.

    The scale may be applied before or after the first product, or split over both factors; the mask is optional. A
    constant causal mask becomes `is_causal`.

    Exact: does nothing if the mask could forbid every key of a row, for which Softmax gives NaN and the operator 0, or
    if the graph replaces NaN after the Softmax; `RelaxedAttentionFusion` handles these.
    """

    makes = frozenset({"Attention"})

    takes_all_rows = False
    """Whether a NaN guard after the Softmax, and a mask that may forbid every key of a row, are also accepted."""

    def __init__(self) -> None:
        super().__init__()
        self._q, self._k, self._v = (any_input(rank_equals(4)) for _ in range(3))
        self._factor, self._divisor, self._mask = wrap_const(), wrap_const(), any_input()
        scores = wrap_type("MatMul", [self._q, self._k])
        scaled = optional("Div", [optional("Mul", [scores, self._factor]), self._divisor])
        softmax = wrap_type(
            "Softmax", [optional("Add", [scaled, self._mask])], attrs_match(axis=lambda axis: axis in (-1, 3))
        )
        probabilities: Node = softmax
        self._guarded: Node | None = None
        if self.takes_all_rows:
            self._guarded = wrap_type("Where", [wrap_type("IsNaN", [softmax]), wrap_const(0), softmax])
            probabilities = any_of([self._guarded, softmax])
        self.register_matcher(Matcher(wrap_type("MatMul", [probabilities, self._v]), self.name), self._replace)

    def _replace(self, m: Matcher) -> bool:
        root, values = m.match_root, m.pattern_value_map
        if self.transformation_callback(root) or not has_one_exit(m):
            return False
        scale = 1.0
        for place, power in ((self._factor, 1), (self._divisor, -1)):
            number = scalar(values[place]) if place in values else 1.0
            if not number:
                return False
            scale *= number**power
        parts = _AttentionInputs(scale)
        sources = parts.collect(values[self._q], values[self._k], values[self._v])
        number = None if sources is None else float_attribute(parts.scale, sources[0])
        if sources is None or number is None or not (0 < number < math.inf):
            return False
        shape = _scores_shape(sources)
        if shape is None:
            return False
        found: Mask | None = Mask()
        if self._mask in values:
            found = as_mask(values[self._mask], shape, sources[0].element_type, self.takes_all_rows)
        if found is None:
            return False
        attributes = {"scale": number, "is_causal": int(found.is_causal)}
        attention = self.make(sources, found.value, attributes, is_guarded=self._guarded in values)
        return replace_by(root, [*m.matched_nodes, *parts.absorbed, *found.absorbed], [*parts.made, attention])

    def make(
        self,
        sources: tuple[Output, Output, Output],
        mask: Output | None,
        attributes: Mapping[str, Any],
        *,
        is_guarded: bool,
    ) -> Node:
        """The operator that replaces a match."""
        return ops.Attention(*sources, mask, **attributes)


class RelaxedAttentionFusion(AttentionFusion):
    """`AttentionFusion` for two more forms, whose results differ for rows that are NaN or have no allowed key.

    A graph that replaces NaN after the Softmax (IsNaN -> Where) gives 0 for a row of NaN, the operator gives NaN. A
    graph that does not replace NaN gives NaN for a row whose keys are all masked, the operator gives 0. Exact for
    inputs without NaN and rows with at least one key. Disabled unless a `PassConfig` enables it.
    """

    makes = frozenset({"Attention"})

    by_default = False

    takes_all_rows = True


class InternalAttentionFusion(AttentionFusion):
    """Turns the forms for which `Attention` is not exact into `engine.FusedAttention`, which is."""

    makes = frozenset({"engine.FusedAttention"})

    takes_all_rows = True

    def make(
        self,
        sources: tuple[Output, Output, Output],
        mask: Output | None,
        attributes: Mapping[str, Any],
        *,
        is_guarded: bool,
    ) -> Node:
        """The operator that replaces a match."""
        q, k, v = sources
        return FusedAttention(q, k, v, mask, rows="guarded" if is_guarded else "softmax", **attributes)


@dataclass(slots=True)
class _AttentionInputs:
    """Collects the inputs of an attention, with preceding scales, transposes and repetitions absorbed."""

    scale: float
    absorbed: list[Node] = field(default_factory=list)
    made: list[Node] = field(default_factory=list)

    def collect(self, q: Output, k: Output, v: Output) -> tuple[Output, Output, Output] | None:
        """Queries, keys and values as the operator takes them; None if the keys are not transposed."""
        query = self.without_scale(q)
        turned = operation(self.without_scale(k), "Transpose")
        perm = None if turned is None else permutation(turned)
        if turned is None or perm is None:
            return None
        self.absorbed.append(turned)
        before = self.without_scale(turned.input_value(0))
        key = transposed(before, [*perm[:2], perm[3], perm[2]])
        if key.node is not before.node:
            self.made.append(key.node)
        return query, key, v

    def without_scale(self, value: Output) -> Output:
        """`value` before a multiplication or division by a positive number, which is absorbed into the scale."""
        node = operation(value, "Mul", "Div")
        if node is None:
            return value
        for index in (1, 0) if node.op_type == "Mul" else (1,):
            number, source = scalar(node.input_value(index)), node.input_value(1 - index)
            if number is not None and number > 0 and len(dims_of(source) or ()) == 4:
                self.scale *= number if node.op_type == "Mul" else 1 / number
                self.absorbed.append(node)
                return source
        return value


def _scores_shape(sources: tuple[Output, Output, Output]) -> list[Dimension] | None:
    """[B, H, S, T] of the scores, if batches, heads, head sizes and lengths provably fit the operator."""
    shapes = [dims_of(source) for source in sources]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return None
    q, k, v = (shape for shape in shapes if shape is not None)
    if len({source.element_type for source in sources}) != 1 or not same_length(q[3], k[3]):
        return None
    if not (same_lengths(q[:2], k[:2]) and same_lengths(k[:3], v[:3])):
        return None
    return [q[0], q[1], q[2], k[2]]
