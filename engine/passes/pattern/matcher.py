"""`Matcher`: a pattern with a name, and what it found."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import GraphError, PassError
from engine.ir import Node, Output, OutputLike, as_output
from engine.passes.pattern.matching import MatchState, Trace, compile_pattern, root_kinds
from engine.passes.pattern.nodes import Block


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a pattern matches at a node and, if not, how far it came and what failed first there."""

    matched: bool
    matcher: str
    root: str
    matched_nodes: tuple[str, ...]
    pattern_node: str
    reason: str

    def __str__(self) -> str:
        if self.matched:
            return f"{self.matcher} matches at {self.root}: {', '.join(self.matched_nodes)}"
        found = f"it matched {', '.join(self.matched_nodes)}, then" if self.matched_nodes else "at the root,"
        return f"{self.matcher} does not match at {self.root}: {found} {self.pattern_node}: {self.reason}"


_NOTHING = MatchState()


class Matcher:
    """Matches the pattern that ends in `root`; pattern nodes that the root does not reach play no part.

    Holds the last match until the next one or `clear_state`. Not thread-safe.
    """

    __slots__ = ("_operators", "_root_kinds", "_state", "_step", "match_root", "name", "pattern")

    def __init__(self, root: OutputLike, name: str) -> None:
        try:
            output = as_output(root)
        except GraphError as e:
            raise PassError(f"matcher {name!r}: {e}") from e
        self.name = name
        self.pattern: Node = output.node
        self._step, self._operators = compile_pattern(output.node)
        self._root_kinds = root_kinds(self._step)
        self._state = _NOTHING
        self.match_root: Node = output.node

    @property
    def root_kinds(self) -> frozenset[tuple[str, str]] | None:
        """(domain, operator) of every node that can be a root; None where the root's type is left open."""
        return self._root_kinds

    def match(self, value: OutputLike) -> bool:
        """Match the pattern's root against a node or one of its outputs; what was matched before is forgotten."""
        if type(value) is not Output:
            value = Output(value, 0)  # type: ignore[arg-type]
        self._state = state = MatchState()
        if not self._step.match(value, state):
            return False
        self.match_root = value.node
        return True

    @property
    def matched_nodes(self) -> list[Node]:
        """The nodes of the last match, root first; what `any_input` stands for is not among them."""
        return _matched_nodes(self._state, self._operators)

    @property
    def pattern_value_map(self) -> dict[Node, Output]:
        """What each pattern node stands for in the last match; optional parts that are absent are missing."""
        return self._state.values

    @property
    def symbols(self) -> dict[str, int | str]:
        """The symbols of `shape_matches` in the last match."""
        return dict(self._state.symbols)

    def block(self, name: str) -> dict[str, Output]:
        """The parts of the block `name` in the last match. Raises `PassError` where it has none of that name."""
        for node in self._state.values:
            if isinstance(node, Block) and node.friendly_name == name:
                return {k: self._state.values[v] for k, v in node.parts.items() if v in self._state.values}
        raise PassError(f"matcher {self.name!r} matched no block {name!r}")

    def clear_state(self) -> None:
        """Forget the last match, and with it the references to nodes that it holds."""
        self._state = _NOTHING
        self.match_root = self.pattern

    def explain(self, value: OutputLike) -> Explanation:
        """Why the pattern does, or does not, match at `value`; the last match is left alone."""
        if type(value) is not Output:
            value = Output(value, 0)  # type: ignore[arg-type]
        trace = Trace()
        state = MatchState(trace)
        if self._step.match(value, state):
            return Explanation(
                True, self.name, str(value.node), tuple(map(str, _matched_nodes(state, self._operators))), "", ""
            )
        matched = tuple(dict.fromkeys(str(trace.values[p].node) for p in self._operators if p in trace.values))
        return Explanation(False, self.name, str(value.node), matched, trace.where, trace.reason)

    def __repr__(self) -> str:
        return f"<Matcher {self.name!r}>"


def _matched_nodes(state: MatchState, operators: list[Node]) -> list[Node]:
    values = state.values
    nodes: list[Node] = []
    for pattern_node in operators:
        if pattern_node in values:
            node = values[pattern_node].node
            if node not in nodes:
                nodes.append(node)
    return nodes
