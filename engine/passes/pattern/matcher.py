"""`Matcher`: a named pattern and its last match."""

from __future__ import annotations

from engine.errors import GraphError, PassError
from engine.ir import Node, Output, OutputLike, as_output
from engine.passes.pattern.compiling import compile_pattern, root_kinds
from engine.passes.pattern.matching import Instruction, MatchState, Trace
from engine.passes.pattern.nodes import Block
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a pattern matches at a node and, if not, how far it matched and why it failed.

    Attributes:
        matched_nodes: the nodes that the deepest attempt matched, the root first.
        edge: the edge at which matching failed: `input 0 of Relu `r``; empty at the root.
        pattern_node: the part of the pattern that failed, by its friendly name or its kind.
        reason: the type, predicate or number of inputs that did not fit, in words.
        depth: how many parts of the pattern had matched.
    """

    matched: bool
    matcher: str
    root: str
    matched_nodes: tuple[str, ...]
    edge: str = ""
    pattern_node: str = ""
    reason: str = ""
    depth: int = 0

    def __str__(self) -> str:
        if self.matched:
            return f"{self.matcher} matches at {self.root}: {', '.join(self.matched_nodes)}"
        found = f"matched {', '.join(self.matched_nodes)}, then " if self.matched_nodes else ""
        place = f"at {self.edge}, " if self.edge else ""
        return f"{self.matcher} does not match at {self.root}: {found}{place}{self.pattern_node}: {self.reason}"


_NOTHING = MatchState()


class Matcher:
    """Matches the pattern with root `root`; pattern nodes that the root does not reach are ignored.

    The pattern is compiled at the first attempt: in a pipeline, most patterns have roots that the model does not have.
    Holds the last match until the next attempt or `clear_state`. Not thread-safe. Raises `PassError` if `root` has
    several outputs and none is selected.
    """

    __slots__ = (
        "_compiled",
        "_match_root",
        "_operators",
        "_root",
        "_root_kinds",
        "_spare",
        "_state",
        "name",
        "owner",
        "pattern",
    )

    def __init__(self, root: OutputLike, name: str) -> None:
        try:
            output = as_output(root)
        except GraphError as e:
            raise PassError(f"matcher {name!r}: {e}") from e
        self.name = name
        self.owner: str | None = None
        """The name of the pass that registered this matcher."""
        self.pattern: Node = output.node
        self._root = output
        self._root_kinds = root_kinds(output.node)
        self._compiled: tuple[Instruction, int] | None = None
        self._operators: list[Node] = []
        self._state = _NOTHING
        self._spare = MatchState()  # of the next attempt: most fail, and creating three dicts costs as much as one
        self._match_root: Node | None = None

    @property
    def root_kinds(self) -> frozenset[tuple[str, str]] | None:
        """(domain, operator) of every node that can be a root; None if the root can have any type."""
        return self._root_kinds

    def match(self, value: OutputLike) -> bool:
        """Match the pattern's root against a node or one of its outputs; the previous match is discarded."""
        instruction, index = self._compiled or self._compile()
        output = value if type(value) is Output else Output(value, index)  # type: ignore[arg-type]
        if self._match_root is not None:
            self.clear_state()
        state = self._spare
        try:
            if instruction.match(output, state, None):
                self._match_root, self._state = output.node, state
                return True
        except BaseException:
            self._spare = MatchState()
            raise
        state.clear()
        return False

    @property
    def match_root(self) -> Node:
        """The root node of the last match. Raises `PassError` if there is none, or it was cleared."""
        if self._match_root is None:
            raise PassError(f"matcher {self.name!r} has no match")
        return self._match_root

    @property
    def matched_nodes(self) -> list[Node]:
        """The nodes of the last match, root first, without those matched by `any_input`."""
        return _matched_nodes(self._state.values, self._operators)

    @property
    def pattern_value_map(self) -> dict[Node, Output]:
        """The value that each pattern node matched in the last match; absent optional parts are missing."""
        return self._state.values

    @property
    def symbols(self) -> dict[str, int | str]:
        """The symbols of `shape_matches` in the last match."""
        return dict(self._state.symbols)

    def block(self, name: str) -> dict[str, Output]:
        """The parts of the block `name` in the last match. Raises `PassError` if it does not have the block."""
        for node in self._state.values:
            if isinstance(node, Block) and node.friendly_name == name:
                return {k: self._state.values[v] for k, v in node.parts.items() if v in self._state.values}
        raise PassError(f"the match of matcher {self.name!r} has no block {name!r}")

    def clear_state(self) -> None:
        """Discard the last match and its references to nodes."""
        if self._match_root is not None:
            self._match_root, self._state = None, _NOTHING
            self._spare.renew()

    def explain(self, value: OutputLike) -> Explanation:
        """Why the pattern does, or does not, match at `value`; the last match is not changed."""
        instruction, index = self._compiled or self._compile()
        output = value if type(value) is Output else Output(value, index)  # type: ignore[arg-type]
        trace = Trace()
        state = MatchState(trace)
        root = str(output.node)
        if instruction.match(output, state, None):
            nodes = _matched_nodes(state.values, self._operators)
            return Explanation(True, self.name, root, tuple(map(str, nodes)), depth=len(state.values))
        nodes = _matched_nodes(trace.values, self._operators)
        return Explanation(
            False, self.name, root, tuple(map(str, nodes)), trace.edge, trace.where, trace.reason, trace.depth
        )

    def _compile(self) -> tuple[Instruction, int]:
        """The instructions, and the output that stands for a node."""
        instruction, self._operators = compile_pattern(self._root)
        self._compiled = instruction, self._root.index if instruction.counts_outputs else 0
        return self._compiled

    def __repr__(self) -> str:
        return f"<Matcher {self.name!r}>"


def _matched_nodes(values: dict[Node, Output], operators: list[Node]) -> list[Node]:
    nodes: list[Node] = []  # patterns are short: a linear search is faster than hashing
    for pattern_node in operators:
        value = values.get(pattern_node)
        if value is not None and value.node not in nodes:
            nodes.append(value.node)
    return nodes
