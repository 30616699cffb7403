"""Explaining why a pass does not match, as shown by `engine passes explain`."""

from __future__ import annotations

from collections.abc import Iterator

from engine.errors import PassError
from engine.ir import Model, Node, Result
from engine.ir.walk import all_nodes
from engine.passes.base import Pass
from engine.passes.manager import Manager
from engine.passes.pattern import Explanation
from engine.passes.rewrite import GraphRewrite, MatcherPass
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class PassExplanation:
    """The result of one matcher pass at one node.

    Attributes:
        match: how far its pattern matched.
        callback: if the pattern matches: `changes`, `declines` or the error that the callback raised.
    """

    match: Explanation
    callback: str = ""

    def __str__(self) -> str:
        return f"{self.match}; the callback {self.callback}" if self.callback else str(self.match)


def explain_pass(item: Pass, model: Model, node: str | None = None, most: int = 5) -> list[PassExplanation]:
    """Why the matchers of `item` match, or do not, at the node with a friendly name, or at the closest nodes.

    Without `node`, each matcher is explained at up to `most` nodes: where it matches or, if there are none, where it
    came furthest. The model is not changed: callbacks run on a copy. Raises `PassError` for a pass without matchers and
    for an unknown node.
    """
    matchers = list(_matchers(item))
    if not matchers:
        raise PassError(f"pass {item.name} has no pattern to explain: it is a whole-model pass")
    nodes = list(all_nodes(model))
    if node is not None:
        named = [candidate for candidate in nodes if candidate.friendly_name == node]
        if not named:
            raise PassError(f"model `{model.name}` has no node `{node}`")
        # A Result often has the name of its source, which is the node meant.
        nodes = [candidate for candidate in named if not isinstance(candidate, Result)] or named
    found = []
    for matcher_pass in matchers:
        attempts = [(candidate, matcher_pass.explain(candidate)) for candidate in nodes]
        if node is None:
            attempts = _telling(attempts, most)
        found += [_with_callback(matcher_pass, model, candidate, match) for candidate, match in attempts]
    return found


def _matchers(item: Pass) -> Iterator[MatcherPass]:
    if isinstance(item, MatcherPass):
        yield item
    elif isinstance(item, GraphRewrite):
        yield from item.matchers
    elif isinstance(item, Manager):
        for inner in item.passes:
            yield from _matchers(inner)


def _telling(attempts: list[tuple[Node, Explanation]], most: int) -> list[tuple[Node, Explanation]]:
    """The matches; if there are none, the attempts that came furthest."""
    matches = [attempt for attempt in attempts if attempt[1].matched]
    if matches:
        return matches[:most]
    deepest = max((match.depth for _, match in attempts), default=0)
    return [attempt for attempt in attempts if attempt[1].depth == deepest][:most]


def _with_callback(matcher_pass: MatcherPass, model: Model, node: Node, match: Explanation) -> PassExplanation:
    """The outcome of the callback for the match, run on a copy of the model."""
    if not match.matched:
        return PassExplanation(match)
    position = next(i for i, candidate in enumerate(all_nodes(model)) if candidate is node)
    copy = model.clone()
    twin = next(candidate for i, candidate in enumerate(all_nodes(copy)) if i == position)
    try:
        changed = matcher_pass.apply(twin)
    except PassError as e:
        return PassExplanation(match, f"raises: {e}")
    return PassExplanation(match, "changes the model there" if changed else "declines: it returned False")
