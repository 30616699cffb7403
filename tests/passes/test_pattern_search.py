"""The matcher against a brute-force one: whatever a pattern's parts share, a match is found exactly where one exists.

A fusion that silently misses a form of its pattern is the most frequent and least visible fault of a pattern matcher.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import ops
from engine.ir import Node, Output, Parameter, f32
from engine.passes.pattern import Matcher, any_input, any_of, optional, shape_matches, wrap_type
from engine.passes.pattern.nodes import AnyInput, AnyOf, OptionalNode, WrapType

UNARY = ("Relu", "Neg")
BINARY = ("Add", "Sub", "Mul")
COMMUTATIVE = ("Add", "Mul", "Max")

Binding = dict[Node, tuple[Node, int]]
State = tuple[Binding, dict[str, object]]


def solutions(pattern: Node, value: Output, state: State) -> Iterator[State]:
    """Every way in which `pattern` matches `value`, by definition rather than by search with cuts."""
    binding, symbols = state
    known = binding.get(pattern)
    here = value.node, value.index
    if isinstance(pattern, OptionalNode):
        yield from optional_solutions(pattern, value, state)
        return
    if known is not None:
        if known == here:
            yield state
        return
    if isinstance(pattern, AnyInput):
        bound = dict(symbols)
        if pattern.predicate is None or pattern.predicate.check(value, bound):  # type: ignore[arg-type]
            yield {**binding, pattern: here}, bound
    elif isinstance(pattern, AnyOf):
        for source in pattern.input_values:
            assert source is not None
            yield from solutions(source.node, value, ({**binding, pattern: here}, symbols))
    else:
        yield from type_solutions(pattern, value, ({**binding, pattern: here}, symbols))


def optional_solutions(pattern: OptionalNode, value: Output, state: State) -> Iterator[State]:
    binding, symbols = state
    known, here = binding.get(pattern), (value.node, value.index)
    inner = pattern.input_value(0).node
    if known is None:
        yield from type_solutions(pattern, value, ({**binding, pattern: here}, symbols))
        # A negative index marks a node that was skipped.
        yield from solutions(inner, value, ({**binding, pattern: (value.node, ~value.index)}, symbols))
    elif known in (here, (value.node, ~value.index)):
        yield state


def type_solutions(pattern: Node, value: Output, state: State) -> Iterator[State]:
    assert isinstance(pattern, WrapType)
    node = value.node
    if (node.domain, node.op_type) not in pattern.kinds:
        return
    if pattern.any_inputs:
        yield state
        return
    wanted = [source.node for source in pattern.input_values if source is not None]
    given_values = [source for source in node.input_values if source is not None]
    if len(wanted) != len(given_values):
        return
    orders = permutations(given_values) if node.op_type in COMMUTATIVE else [tuple(given_values)]
    for order in orders:
        states = [state]
        for part, source in zip(wanted, order, strict=True):
            states = [found for before in states for found in solutions(part, source, before)]
        yield from states


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = [Parameter(f32, [2, 3]), Parameter(f32, [3, 3]), Parameter(f32, [3, 1])]
    nodes = nodes[: draw(st.integers(1, 3))]
    for _ in range(draw(st.integers(3, 9))):
        sources = st.sampled_from(nodes)
        kind = draw(st.sampled_from([*UNARY, *BINARY, "Max"]))
        count = 1 if kind in UNARY else 2 if kind in BINARY else 3
        try:
            nodes.append(ops.create(kind, [draw(sources) for _ in range(count)]))
        except Exception:  # shapes that do not broadcast
            continue
    return nodes


@st.composite
def patterns(draw: st.DrawFn) -> Node:
    parts: list[Node] = [any_input(), any_input()]
    if draw(st.booleans()):
        parts += [any_input(shape_matches("[N, M]")), any_input(shape_matches("[M, ?]"))]
    for _ in range(draw(st.integers(1, 6))):
        part = st.sampled_from(parts)
        choice = draw(st.sampled_from(["unary", "binary", "three", "any_of", "optional", "open"]))
        if choice == "unary":
            parts.append(wrap_type(draw(st.sampled_from([[k] for k in UNARY] + [list(UNARY)])), [draw(part)]))
        elif choice == "binary":
            kinds = draw(st.sampled_from([[k] for k in BINARY] + [["Add", "Sub"]]))
            parts.append(wrap_type(kinds, [draw(part), draw(part)]))
        elif choice == "three":
            parts.append(wrap_type("Max", [draw(part), draw(part), draw(part)]))
        elif choice == "any_of":
            parts.append(any_of([draw(part), draw(part)]))
        elif choice == "optional":
            parts.append(optional(draw(st.sampled_from(UNARY)), [draw(part)]))
        else:
            parts.append(wrap_type(draw(st.sampled_from([*UNARY, *BINARY]))))
    return parts[-1]


@st.composite
def likely_patterns(draw: st.DrawFn, graph: list[Node]) -> Node:
    """A pattern made from the graph itself, which may have become wrong at one or the other place."""
    made: dict[Node, Node] = {}

    def generalize(node: Node, depth: int) -> Node:
        if draw(st.integers(0, 9)) == 9:
            node = draw(st.sampled_from(graph))
        if node in made and draw(st.booleans()):
            return made[node]
        if depth == 0 or node.op_type == "Parameter" or draw(st.integers(0, 7)) == 7:
            shapes = [None, None, shape_matches("[N, M]"), shape_matches("[M, ?]")]
            result: Node = any_input(draw(st.sampled_from(shapes)))
        else:
            inputs = [generalize(source.node, depth - 1) for source in node.input_values if source is not None]
            if node.op_type in COMMUTATIVE:
                inputs = draw(st.permutations(inputs))
            result = wrap_type([node.op_type, *draw(st.sampled_from([[], ["Relu"], ["Mul"]]))], inputs)
        extra = draw(st.sampled_from(["", "", "", "any_of", "optional"]))
        if extra == "any_of":
            other = wrap_type(draw(st.sampled_from(UNARY)), [any_input()])
            result = any_of(draw(st.permutations([result, other])))
        elif extra == "optional":
            result = optional(draw(st.sampled_from(UNARY)), [result])
        made[node] = result
        return result

    return generalize(graph[-1], 4)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_the_matcher_finds_a_match_exactly_where_one_exists(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    pattern = data.draw(likely_patterns(graph) if data.draw(st.booleans()) else patterns())
    matcher = Matcher(pattern, "random")
    for node in graph:
        value = node.output(0)
        found = next(solutions(pattern, value, ({}, {})), None)
        assert matcher.match(value) is (found is not None)
        explanation = matcher.explain(value)
        assert explanation.matched is (found is not None)
        if found is None:
            assert explanation.reason
            assert matcher.pattern_value_map == {}
        else:
            check_binding(pattern, matcher, value)


def check_binding(pattern: Node, matcher: Matcher, value: Output) -> None:
    """The matcher's bindings are one of the ways in which the pattern matches."""
    bound = {part: (output.node, output.index) for part, output in matcher.pattern_value_map.items()}
    for binding, symbols in solutions(pattern, value, ({}, {})):
        if {p: v for p, v in binding.items() if v[1] >= 0} == bound and symbols == matcher.symbols:
            return
    raise AssertionError(f"{bound} is not a match")


def test_a_search_that_fails_does_not_try_all_orders_of_what_is_independent() -> None:
    # Twelve commutative levels with two orders each below an input that never fits: 4096 ways; one is enough.
    attempts = 0

    def counted(value: Output) -> bool:
        nonlocal attempts
        attempts += 1
        return False

    pattern: Node = any_input()
    node: Node = Parameter(f32, [4], "x")
    for _ in range(12):
        pattern, node = wrap_type("Add", [pattern, any_input()]), ops.Add(node, node)
    root = wrap_type("Sub", [pattern, any_input(counted)])
    assert not Matcher(root, "deep").match(ops.Sub(node, node))
    assert attempts == 1


def test_inputs_that_take_anything_do_not_multiply_the_search() -> None:
    x = Parameter(f32, [4], "x")
    many = [any_input() for _ in range(11)]
    pattern = wrap_type("Sum", [*many, wrap_type("Relu")])
    assert not Matcher(pattern, "wide").match(ops.Sum(*([ops.Neg(x)] * 12)))
    assert Matcher(pattern, "wide").match(ops.Sum(ops.Relu(x), *([ops.Neg(x)] * 11)))
