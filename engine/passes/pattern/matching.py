"""The matching machine: the instructions into which a pattern is compiled, and the result of one match.

An instruction receives a value and the goals that remain after it, a linked list of (instruction, value, rest). It
succeeds if it matches the value and all of these goals succeed. A later failure can therefore undo every choice (the
order of a commutative operator's inputs, an alternative, an optional node), and the search is complete. A choice on
which nothing outside its instruction depends is final, which keeps the search linear in the usual case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from engine.ir import Node, Output
from engine.ops import find_op
from engine.passes.pattern.predicates import Predicate, Symbols

Goals: TypeAlias = "tuple[Instruction, Any, Goals] | None"
Kind: TypeAlias = "tuple[str, str]"


class MatchState:
    """The bindings of a match in progress. Undone by popping: dicts keep insertion order.

    Attributes:
        values: the value bound to each pattern node.
        symbols: the values bound to the symbols of predicates.
        skipped: the values matched in place of absent optional nodes.
    """

    __slots__ = ("skipped", "symbols", "trace", "values")

    def __init__(self, trace: Trace | None = None) -> None:
        self.values: dict[Node, Output] = {}
        self.symbols: Symbols = {}
        self.skipped: dict[Node, Output] = {}
        self.trace = trace

    def mark(self) -> tuple[int, int, int]:
        """A point to which `undo` can return."""
        return len(self.values), len(self.symbols), len(self.skipped)

    def undo(self, mark: tuple[int, int, int]) -> None:
        """Discard the bindings made since `mark`."""
        values, symbols, skipped = mark
        while len(self.values) > values:
            self.values.popitem()
        while len(self.symbols) > symbols:
            self.symbols.popitem()
        while len(self.skipped) > skipped:
            self.skipped.popitem()

    def clear(self) -> None:
        """Discard all bindings."""
        if self.values:
            self.values.clear()
        if self.symbols:
            self.symbols.clear()
        if self.skipped:
            self.skipped.clear()

    def renew(self) -> None:
        """Discard all bindings; a caller may keep `values`."""
        self.values = {}
        if self.symbols:
            self.symbols.clear()
        if self.skipped:
            self.skipped.clear()


class Trace:
    """Collects why a match failed; the failure after the most matched nodes is reported."""

    __slots__ = ("depth", "edge", "reason", "values", "where")

    def __init__(self) -> None:
        self.depth = -1
        self.edge = self.reason = self.where = ""
        self.values: dict[Node, Output] = {}

    def fail(self, state: MatchState, instruction: Instruction, value: Output | None, reason: str) -> bool:
        """Record a failure of `instruction` at `value`; the first of the deepest ones is kept. Always False."""
        depth = len(state.values)
        if depth > self.depth:
            self.depth, self.reason, self.where = depth, reason, instruction.label
            self.edge = "" if value is None else _edge(state, value)
            self.values = dict(state.values)
        return False


class Instruction:
    """One compiled pattern node.

    Attributes:
        node: the pattern node.
        label: its name in explanations.
        counts_outputs: the pattern selects single outputs of it, so it matches a node, not a single value.
        accepts: the operators of nodes that it can match; None for any. Choices by it need no attempt.
    """

    __slots__ = ("accepts", "counts_outputs", "label", "node", "predicate")

    counts_outputs: bool
    accepts: frozenset[Kind] | None

    def __init__(self, node: Node, label: str, predicate: Predicate | None) -> None:
        self.node = node
        self.label = label
        self.predicate = predicate

    def match(self, value: Output, state: MatchState, rest: Goals) -> bool:
        """Match `value` and then `rest`. On failure, the instruction that made the last choice undoes the bindings."""
        raise NotImplementedError

    def _again(self, known: Output, value: Output, state: MatchState, rest: Goals) -> bool:
        """Match a pattern node that is already bound to `known`: `value` must be the same."""
        if known.node is value.node and (self.counts_outputs or known.index == value.index):
            return rest is None or rest[0].match(rest[1], state, rest[2])
        if state.trace is not None:
            known_text, found = (str(known.node), str(value.node)) if self.counts_outputs else (str(known), str(value))
            state.trace.fail(state, self, value, f"already matched {known_text}, found {found}")
        return False

    def _refused(self, predicate: Predicate, value: Output, state: MatchState) -> bool:
        """Record why the predicate does not hold; always False."""
        if state.trace is not None:
            state.trace.fail(state, self, value, f"{value.node}: {predicate.why(value, dict(state.symbols))}")
        return False


class AnyInstruction(Instruction):
    """Matches any value, and binds it to the pattern's node."""

    __slots__ = ()

    def match(self, value: Output, state: MatchState, rest: Goals) -> bool:
        """Bind the value, or compare it with the value already bound to the pattern node."""
        known = state.values.get(self.node)
        if known is not None:
            return self._again(known, value, state, rest)
        predicate = self.predicate
        if predicate is not None:
            if not value.node.output_types:
                return False  # a Result or a sink has no value
            if not predicate.check(value, state.symbols):
                return self._refused(predicate, value, state)
        state.values[self.node] = value
        return rest is None or rest[0].match(rest[1], state, rest[2])


class PortInstruction(Instruction):
    """One output of the node that another instruction matches."""

    __slots__ = ("index", "inner")

    inner: Instruction
    index: int

    def match(self, value: Output, state: MatchState, rest: Goals) -> bool:
        """Match the index, and then the rest."""
        if self.index == value.index:
            return self.inner.match(value, state, rest)
        return state.trace is not None and state.trace.fail(
            state, self, value, f"expected output {self.index}, found {value}"
        )


class TypeInstruction(Instruction):
    """A node of one of several operators, with any inputs or with the given ones, in order."""

    __slots__ = ("has_gaps", "inputs", "kinds")

    kinds: frozenset[Kind]
    inputs: Sequence[Instruction | None] | None
    has_gaps: bool
    """The pattern expects some input to be omitted."""

    def match(self, value: Output, state: MatchState, rest: Goals) -> bool:
        """Match the operator, the predicate and the inputs, unless the pattern's node is bound already."""
        values = state.values
        known = values.get(self.node)
        if known is not None:
            return self._again(known, value, state, rest)
        node = value.node
        if (node.domain, node.op_type) not in self.kinds:
            return state.trace is not None and state.trace.fail(
                state, self, value, f"expected {kinds_text(self.kinds)}, found {node}"
            )
        inputs, predicate = self.inputs, self.predicate
        inner = source = None
        if inputs is not None and len(inputs) == 1 == len(node.sources) and not self.has_gaps:
            inner, source = inputs[0], node.sources[0]
            if inner is not None and source is not None and state.trace is None:
                accepts, given = inner.accepts, source.node
                if accepts is not None and (given.domain, given.op_type) not in accepts:
                    return False  # before the predicate, which costs more
        if predicate is not None and not predicate.check(value, state.symbols):
            return self._refused(predicate, value, state)
        values[self.node] = value
        if inner is not None and source is not None:
            return inner.match(source, state, rest)
        if inputs is None:
            return rest is None or rest[0].match(rest[1], state, rest[2])
        return self._match_inputs(node, inputs, state, rest)

    def _match_inputs(
        self, node: Node, instructions: Sequence[Instruction | None], state: MatchState, rest: Goals
    ) -> bool:
        sources = node.sources
        if len(sources) != len(instructions) or self.has_gaps:
            pairs = self._fit(node, instructions, state)
            if pairs is None:
                return False
            sources, instructions = pairs
        is_traced = state.trace is not None
        for position in range(len(instructions) - 1, -1, -1):
            instruction, source = instructions[position], sources[position]
            if source is None:
                return self._omitted(node, position, state)
            accepts, given = instruction.accepts, source.node  # type: ignore[union-attr]
            if accepts is not None and (given.domain, given.op_type) not in accepts and not is_traced:
                return False
            rest = instruction, source, rest  # type: ignore[assignment]  # no instruction is None after `_fit`
        return rest is None or rest[0].match(rest[1], state, rest[2])

    def _fit(
        self, node: Node, instructions: Sequence[Instruction | None], state: MatchState
    ) -> tuple[list[Output | None], Sequence[Instruction | None]] | None:
        """Sources and instructions, without inputs that the pattern expects to be omitted; None if they do not fit."""
        sources = _without_trailing(node.sources)
        if len(sources) > len(instructions) and node.has_bodies:
            sources = _without_trailing(node.sources[: node.num_formal_inputs])  # captures are not inputs
        if len(sources) > len(instructions) or len(sources) < len(_without_trailing(instructions)):
            if state.trace is not None:
                reason = f"{node} has {len(sources)} inputs, the pattern expects {len(_without_trailing(instructions))}"
                state.trace.fail(state, self, None, reason)
            return None
        pairs = list(zip(sources, instructions, strict=False))
        for position, (source, instruction) in enumerate(pairs):
            if instruction is None and source is not None:
                if state.trace is not None:
                    reason = f"input {position} of {node} is given, the pattern expects it omitted"
                    state.trace.fail(state, self, None, reason)
                return None
        kept = [(source, instruction) for source, instruction in pairs if instruction is not None]
        return [source for source, _ in kept], [instruction for _, instruction in kept]

    def _omitted(self, node: Node, position: int, state: MatchState) -> bool:
        if state.trace is not None:
            reason = f"input {position} of {node} is omitted, the pattern expects it given"
            state.trace.fail(state, self, None, reason)
        return False


class CommutativeInstruction(TypeInstruction):
    """A node of one of several operators, some of them commutative."""

    __slots__ = ("commutative", "is_final", "order")

    commutative: frozenset[Kind]
    order: list[int]
    """Positions of the pattern's inputs, with any-inputs last, since they cannot rule out a choice."""
    is_final: bool

    def _match_inputs(
        self, node: Node, instructions: Sequence[Instruction | None], state: MatchState, rest: Goals
    ) -> bool:
        if (node.domain, node.op_type) not in self.commutative:
            return super()._match_inputs(node, instructions, state, rest)
        sources = node.sources
        if len(sources) != len(instructions):
            pairs = self._fit(node, instructions, state)
            if pairs is None:
                return False
            sources = pairs[0]
        # Each input is first tried at its own position, so that patterns bind as written.
        goal = _Assignment(
            [instructions[position] for position in self.order], [sources[position] for position in self.order]
        )
        if not self.is_final:
            return goal.match(None, state, rest)
        return goal.match(None, state, None) and (rest is None or rest[0].match(rest[1], state, rest[2]))


class _Assignment(Instruction):
    """The goal to assign each remaining pattern input one of the remaining sources."""

    __slots__ = ("instructions", "left")

    def __init__(self, instructions: Sequence[Instruction | None], left: list[Output | None]) -> None:
        self.instructions = instructions
        self.left = left

    def match(self, value: Any, state: MatchState, rest: Goals) -> bool:
        instruction, left = self.instructions[0], self.left
        assert instruction is not None
        accepts = None if state.trace is not None else instruction.accepts
        mark = state.mark()
        for choice, source in enumerate(left):
            if accepts is not None and source is not None:
                node = source.node
                if (node.domain, node.op_type) not in accepts:
                    continue
            goals = rest
            if len(left) > 1:
                goals = _Assignment(self.instructions[1:], left[:choice] + left[choice + 1 :]), None, rest
            if source is not None and instruction.match(source, state, goals):
                return True
            state.undo(mark)
        return False


class OptionalInstruction(Instruction):
    """Matches `present`, or, if that fails, `absent`, the pattern of its first input."""

    __slots__ = ("absent", "is_final", "present")

    present: TypeInstruction
    absent: Instruction
    is_final: bool

    def match(self, value: Output, state: MatchState, rest: Goals) -> bool:
        """Try with the node, then without; earlier bindings are kept."""
        skipped = state.skipped.get(self.node)
        if skipped is not None:
            return self._again(skipped, value, state, rest)
        if self.node in state.values:
            return self.present.match(value, state, rest)
        mark = state.mark()
        if self.is_final:
            if self.present.match(value, state, None):
                return rest is None or rest[0].match(rest[1], state, rest[2])
        elif self.present.match(value, state, rest):
            return True
        state.undo(mark)
        state.skipped[self.node] = value
        return self.absent.match(value, state, rest)


class AnyOfInstruction(Instruction):
    """The first alternative that matches."""

    __slots__ = ("alternatives", "is_final")

    alternatives: list[Instruction]
    is_final: bool

    def match(self, value: Output, state: MatchState, rest: Goals) -> bool:
        """Try the alternatives in order, each from the bindings before the first one."""
        known = state.values.get(self.node)
        if known is not None:
            return self._again(known, value, state, rest)
        state.values[self.node] = value
        mark, node = state.mark(), value.node
        kind = node.domain, node.op_type
        for instruction in self.alternatives:
            if state.trace is None and instruction.accepts is not None and kind not in instruction.accepts:
                continue
            if self.is_final:
                if instruction.match(value, state, None):
                    return rest is None or rest[0].match(rest[1], state, rest[2])
            elif instruction.match(value, state, rest):
                return True
            state.undo(mark)
        return False


def kinds_text(kinds: frozenset[Kind]) -> str:
    """The operators as text: `Relu or Clip`."""
    return " or ".join(sorted(f"{domain}.{op}" if domain else op for domain, op in kinds))


def is_commutative(kind: Kind) -> bool:
    """True if the operator takes its inputs in any order."""
    op = find_op(kind[1], kind[0])
    return op is not None and op.is_commutative


def _without_trailing(items: Sequence[Any]) -> Sequence[Any]:
    """`items` without trailing Nones, which are omitted inputs."""
    end = len(items)
    while end and items[end - 1] is None:
        end -= 1
    return items[:end]


def _edge(state: MatchState, value: Output) -> str:
    """The edge through which a matched node reads `value`: `input 0 of Add `sum``."""
    for bound in reversed(state.values.values()):
        node = bound.node
        for position, source in enumerate(node.sources):
            if source == value:
                order = " (inputs in any order)" if is_commutative((node.domain, node.op_type)) else ""
                return f"input {position} of {node}{order}"
    return ""
