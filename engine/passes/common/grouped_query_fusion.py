"""`GroupedQueryFusion`: keys and values repeated for groups of queries become a grouped-query attention."""

from __future__ import annotations

from engine import ops
from engine.ir import Dimension, Node, Output
from engine.passes.fusion import dims_of, operation, replace_by, same_lengths
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass


class GroupedQueryFusion(MatcherPass):
    """Makes an Attention of [B, H, S, D] read keys and values from before Unsqueeze -> Expand -> Reshape."""

    def __init__(self) -> None:
        super().__init__()
        attention = wrap_type(["Attention", "engine.FusedAttention"])
        self.register_matcher(Matcher(attention, "GroupedQueryFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        has_cache = any(node.has_input(index) for index in (4, 5, 6))
        if has_cache or node.num_outputs != 1 or not node.has_input(2) or self.transformation_callback(node):
            return False
        key, value = _ungrouped(node.input_value(1)), _ungrouped(node.input_value(2))
        if key is None or value is None or key[1] != value[1]:
            return False
        inputs = [node.input_value(0), key[0], value[0], *node.input_values[3:]]
        made = ops.create(node.op_type, inputs, node.attributes, domain=node.domain)
        return replace_by(node, [node, *key[2], *value[2]], [made])


def _ungrouped(value: Output) -> tuple[Output, int, list[Node]] | None:
    """The [B, H, S, D] whose heads `value` repeats G times by Unsqueeze -> Expand -> Reshape; with G and the nodes."""
    whole = operation(value, "Reshape")
    spread = None if whole is None else operation(whole.input_value(0), "Expand")
    single = None if spread is None else operation(spread.input_value(0), "Unsqueeze", "Reshape")
    if whole is None or spread is None or single is None:
        return None
    source = single.input_value(0)
    heads, one, many, result = (dims_of(v) for v in (source, single.output(0), spread.output(0), value))
    if heads is None or one is None or many is None or result is None or len(heads) != 4 or len(one) != 5:
        return None
    if len(many) != 5 or many[2].is_dynamic or heads[1].is_dynamic or one[2] != 1:
        return None
    count = many[2].get_length()
    around = [*heads[:2], *heads[2:]]
    for shape in (one, many):
        if not same_lengths([*shape[:2], *shape[3:]], around):
            return None
    wanted = [heads[0], Dimension(heads[1].get_length() * count), *heads[2:]]
    return (source, count, [single, spread, whole]) if same_lengths(result, wanted) else None
