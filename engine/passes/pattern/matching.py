"""The matching machine: a pattern is compiled once into steps; a match runs the steps over a graph."""

from __future__ import annotations

from engine.ir import Node, Output
from engine.ops import find_op
from engine.passes.pattern.nodes import AnyInput, AnyOf, Block, OptionalNode, PatternNode, WrapType
from engine.passes.pattern.predicates import Predicate, Symbols


class MatchState:
    """What one match has found so far. Undone by popping: dicts keep the order of insertion."""

    __slots__ = ("symbols", "trace", "values")

    def __init__(self, trace: Trace | None = None) -> None:
        self.values: dict[Node, Output] = {}
        self.symbols: Symbols = {}
        self.trace = trace

    def mark(self) -> tuple[int, int]:
        """A point to which `undo` can return."""
        return len(self.values), len(self.symbols)

    def undo(self, mark: tuple[int, int]) -> None:
        """Forget everything found since `mark`."""
        values, symbols = self.values, self.symbols
        while len(values) > mark[0]:
            values.popitem()
        while len(symbols) > mark[1]:
            symbols.popitem()


class Trace:
    """Collects why a match failed; the failure with most nodes matched before it is the one to tell."""

    __slots__ = ("depth", "reason", "values", "where")

    def __init__(self) -> None:
        self.depth = -1
        self.reason = ""
        self.where = ""
        self.values: dict[Node, Output] = {}

    def fail(self, state: MatchState, where: str, reason: str) -> None:
        """Note a failure; the first of the deepest ones stays."""
        depth = len(state.values)
        if depth > self.depth:
            self.depth, self.reason, self.where = depth, reason, where
            self.values = dict(state.values)


class Step:
    """One compiled pattern node."""

    __slots__ = ("label", "node", "predicate")

    def __init__(self, node: Node, label: str, predicate: Predicate | None) -> None:
        self.node = node
        self.label = label
        self.predicate = predicate

    def match(self, value: Output, state: MatchState) -> bool:
        """Match `value`; on failure the state is as before."""
        raise NotImplementedError

    def _explain(self, value: Output, state: MatchState) -> bool:
        """Note why the predicate fails, where that is asked for; always False."""
        if state.trace is not None:
            assert self.predicate is not None
            state.trace.fail(state, self.label, f"{value.node}: {self.predicate.why(value, state.symbols)}")
        return False


class AnyStep(Step):
    """Any value."""

    __slots__ = ()

    def match(self, value: Output, state: MatchState) -> bool:
        """Bind the value, or compare it with what the same pattern node matched before."""
        known = state.values.get(self.node)
        if known is not None:
            return _same(self, known, value, state)
        predicate = self.predicate
        if predicate is not None:
            mark = state.mark()
            if not predicate.check(value, state.symbols):
                state.undo(mark)
                return self._explain(value, state)
        state.values[self.node] = value
        return True


class TypeStep(Step):
    """A node of one of several operators with given (or any) inputs."""

    __slots__ = ("commutative", "inputs", "kinds", "optional")

    kinds: frozenset[tuple[str, str]]
    inputs: list[tuple[Step, int] | None] | None
    commutative: frozenset[tuple[str, str]]
    optional: bool

    def match(self, value: Output, state: MatchState) -> bool:
        """Match operator, predicate and inputs, or, where optional, pass the value on to the first input."""
        values = state.values
        if self.node in values:
            return _same(self, values[self.node], value, state)
        node = value.node
        if (node.domain, node.op_type) in self.kinds:
            mark = len(values), len(state.symbols)
            predicate = self.predicate
            if predicate is None or predicate.check(value, state.symbols) or self._explain(value, state):
                values[self.node] = value
                if self.inputs is None or self._match_inputs(node, state):
                    return True
            state.undo(mark)
        elif state.trace is not None:
            state.trace.fail(state, self.label, f"expected {kinds_text(self.kinds)}, found {node}")
        if not self.optional:
            return False
        assert self.inputs is not None
        assert self.inputs[0] is not None
        step, index = self.inputs[0]
        return _match_port(step, index, value, state)

    def _match_inputs(self, node: Node, state: MatchState) -> bool:
        steps = self.inputs
        assert steps is not None
        sources = node._sources
        count = len(sources)
        if count != len(steps) and not _only_omitted(steps, count):
            if state.trace is not None:
                state.trace.fail(state, self.label, f"{node} has {count} inputs, the pattern {len(steps)}")
            return False
        if (node.domain, node.op_type) in self.commutative and len(steps) > 1:
            return self._match_any_order(node, list(sources), 0, state)
        return self._match_order(node, sources, state)

    def _match_any_order(self, node: Node, left: list[Output | None], position: int, state: MatchState) -> bool:
        """Give each pattern input, from `position` on, one of the sources that are left; first fit, with retreat."""
        for choice in range(len(left)):
            mark = state.mark()
            if self._match_input(node, position, left[choice], state):
                rest = left[:choice] + left[choice + 1 :]
                if not rest or self._match_any_order(node, rest, position + 1, state):
                    return True
            state.undo(mark)
        return False

    def _match_order(self, node: Node, sources: list[Output | None], state: MatchState) -> bool:
        for position, source in enumerate(sources):  # noqa: SIM110 - a generator costs as much as the match
            if not self._match_input(node, position, source, state):
                return False
        return True

    def _match_input(self, node: Node, position: int, source: Output | None, state: MatchState) -> bool:
        assert self.inputs is not None
        entry = self.inputs[position]
        if entry is not None and source is not None:
            step, index = entry
            if index and index != source.index:
                return _match_port(step, index, source, state)
            return step.match(source, state)
        if entry is None and source is None:
            return True
        if state.trace is not None:
            found, wanted = ("omitted", "given") if source is None else ("given", "omitted")
            state.trace.fail(state, self.label, f"input {position} of {node} is {found}, the pattern wants it {wanted}")
        return False


class AnyOfStep(Step):
    """The first alternative that matches."""

    __slots__ = ("alternatives",)

    alternatives: list[tuple[Step, int]]

    def match(self, value: Output, state: MatchState) -> bool:
        """Try the alternatives in order."""
        known = state.values.get(self.node)
        if known is not None:
            return _same(self, known, value, state)
        mark = state.mark()
        for step, index in self.alternatives:
            if _match_port(step, index, value, state):
                state.values[self.node] = value
                return True
            state.undo(mark)
        return False


def compile_pattern(root: Node) -> tuple[Step, list[Node]]:
    """The steps of the pattern that ends in `root`, and its nodes that match operators, root first.

    Shared pattern nodes become shared steps.
    """
    steps: dict[Node, Step] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        pending = [s.node for s in node._sources if s is not None and s.node not in steps]
        if pending:
            stack.extend(pending)
            continue
        stack.pop()
        if node not in steps:
            steps[node] = _compile_node(node, steps)
    return steps[root], [node for node, step in reversed(steps.items()) if isinstance(step, TypeStep)]


def _compile_node(node: Node, steps: dict[Node, Step]) -> Step:
    inputs = [None if s is None else (steps[s.node], s.index) for s in node._sources]
    label = node.friendly_name if node.has_own_name else ""
    if isinstance(node, AnyInput):
        return AnyStep(node, label or "any_input", node.predicate)
    if isinstance(node, (AnyOf, Block)):
        choice = AnyOfStep(node, label or "any_of", node.predicate)
        choice.alternatives = [entry for entry in inputs if entry is not None]
        return choice
    if isinstance(node, WrapType):
        kinds = node.kinds
        step = TypeStep(node, label or f"wrap_type({kinds_text(kinds)})", node.predicate)
        step.inputs = None if node.any_inputs else inputs
        step.optional = isinstance(node, OptionalNode)
    else:
        assert not isinstance(node, PatternNode)
        kinds = frozenset({(node.domain, node.op_type)})
        step = TypeStep(node, label or f"{node.op_type} of the pattern", None)
        step.inputs = None if node.op_type in ("Constant", "Parameter") else inputs
        step.optional = False
    if step.inputs == [] and all(op_type in ("Constant", "Parameter") for _, op_type in kinds):
        step.inputs = None
    step.kinds = kinds
    step.commutative = frozenset(kind for kind in kinds if _is_commutative(kind))
    return step


def root_kinds(step: Step) -> frozenset[tuple[str, str]] | None:
    """The operators that the root can have; None where any operator can match."""
    if isinstance(step, TypeStep):
        if not step.optional:
            return step.kinds
        assert step.inputs is not None
        assert step.inputs[0] is not None
        behind = root_kinds(step.inputs[0][0])
        return None if behind is None else step.kinds | behind
    if isinstance(step, AnyOfStep):
        kinds: frozenset[tuple[str, str]] = frozenset()
        for alternative, _ in step.alternatives:
            found = root_kinds(alternative)
            if found is None:
                return None
            kinds |= found
        return kinds
    return None


def kinds_text(kinds: frozenset[tuple[str, str]]) -> str:
    """The operators in words: `Relu or Clip`."""
    return " or ".join(sorted(f"{domain}.{op}" if domain else op for domain, op in kinds))


def _match_port(step: Step, index: int, value: Output, state: MatchState) -> bool:
    # Output 0 of a pattern node is the node as a value and takes any output; a higher one was asked for.
    if index and index != value.index:
        if state.trace is not None:
            state.trace.fail(state, step.label, f"expected output {index}, found {value}")
        return False
    return step.match(value, state)


def _same(step: Step, known: Output, value: Output, state: MatchState) -> bool:
    if known.node is value.node and known.index == value.index:
        return True
    if state.trace is not None:
        state.trace.fail(state, step.label, f"stands for {known} already, found {value}: the two must be one value")
    return False


def _only_omitted(steps: list[tuple[Step, int] | None], count: int) -> bool:
    """True where the pattern's inputs beyond `count` are all omitted ones."""
    return len(steps) > count and all(entry is None for entry in steps[count:])


def _is_commutative(kind: tuple[str, str]) -> bool:
    op = find_op(kind[1], kind[0])
    return op is not None and op.is_commutative
