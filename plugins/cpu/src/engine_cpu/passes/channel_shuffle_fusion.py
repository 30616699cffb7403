"""`ChannelShuffleFusion`: the reshapes and the transposition that exporters write for a channel shuffle."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Output, f32
from engine.ops.internal import ChannelShuffle
from engine.ops.transpose import TransposeSpec
from engine.passes import MatcherPass
from engine.passes.fusion import dims_of, has_one_exit, replace_by
from engine.passes.pattern import Matcher, any_input, wrap_type


class ChannelShuffleFusion(MatcherPass):
    """Turns Reshape to [N, groups, C / groups, ...], Transpose of the two and Reshape back into a ChannelShuffle.

    All lengths but the first must be known. Blocked maps stay blocked.
    """

    def __init__(self) -> None:
        super().__init__()
        self._x = any_input()
        self._split = wrap_type("Reshape", [self._x, any_input()])
        self._turned = wrap_type("Transpose", [self._split])
        root = wrap_type("Reshape", [self._turned, any_input()])
        self.register_matcher(Matcher(root, "ChannelShuffleFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        if self.transformation_callback(m.match_root) or not has_one_exit(m):
            return False
        nodes = [m.pattern_value_map[each].node for each in (self._split, self._turned)]
        source = m.pattern_value_map[self._x]
        groups = _groups(source, nodes[0].output(0), m.match_root.output(0))
        perm = TransposeSpec.of(nodes[1]).perm or ()
        if groups is None or perm != (0, 2, 1, *range(3, len(perm))):
            return False
        return replace_by(m.match_root, [*nodes, m.match_root], [ChannelShuffle(source, groups=groups)])


def _groups(source: Output, split: Output, result: Output) -> int | None:
    """The number of groups; None if other axes are split, or a length is unknown."""
    lengths = [_known_lengths(value) for value in (source, split, result)]
    if any(each is None for each in lengths) or source.element_type is not f32:
        return None
    before, between, after = (each or [] for each in lengths)
    if len(before) < 2 or before != after or len(between) < 3:
        return None
    is_split = between[0] * between[1] == before[0] and between[2:] == before[1:]
    return between[0] if is_split else None


def _known_lengths(value: Output) -> Sequence[int] | None:
    """The lengths of all axes but the first."""
    dims = dims_of(value)
    if dims is None or any(dim.is_dynamic for dim in dims[1:]):
        return None
    return [dim.get_length() for dim in dims[1:]]
