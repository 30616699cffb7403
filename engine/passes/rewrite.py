"""`GraphRewrite`: many matcher passes in one traversal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from engine.errors import PassError
from engine.ir import Model, Node, paused_collector
from engine.passes import regions
from engine.passes.base import MatcherPass, Pass
from engine.passes.config import PassConfig

_P = TypeVar("_P", bound=MatcherPass)
_Index = dict[tuple[str, str], list[MatcherPass]]


class GraphRewrite(Pass):
    """Runs several matcher passes over the nodes of a model, each node once, in topological order.

    At a node the passes are tried in registration order until one returns True. Passes whose pattern has a typed
    root are looked up by the node's operator, so passes that cannot match cost nothing. Nodes registered by
    `register_new_node` come next, before the rest of the sequence. Bodies of control flow are rewritten first.

    Args:
        passes: matcher passes, or their classes.
        name: a name for profiles and `PassConfig`; by default the class's.
    """

    def __init__(self, passes: Iterable[MatcherPass | type[MatcherPass]] = (), name: str | None = None) -> None:
        self._passes: list[tuple[MatcherPass, bool]] = []
        if name is not None:
            self.name = name
        for item in passes:
            self.add_matcher(item)

    def add_matcher(self, matcher_pass: _P | type[_P], enabled: bool = True) -> _P:
        """Append a pass (or make one of a class) and return it; `enabled=False` waits for `PassConfig.enable`.

        Raises `PassError` for something else, for a pass that was added before and for one without a matcher.
        """
        instance = matcher_pass() if isinstance(matcher_pass, type) else matcher_pass
        if not isinstance(instance, MatcherPass):
            raise PassError(f"{self.name} takes MatcherPass objects, got {instance!r}")
        if instance.matcher is None:
            raise PassError(f"pass {instance.name} has no matcher; call register_matcher in its __init__")
        if any(item is instance for item, _ in self._passes):
            raise PassError(f"pass {instance.name} is in {self.name} already")
        if self.config is not None:
            instance.set_pass_config(self.config)
        self._passes.append((instance, enabled))
        return instance

    @property
    def matchers(self) -> list[MatcherPass]:
        """The passes, in registration order."""
        return [item for item, _ in self._passes]

    def set_pass_config(self, config: PassConfig) -> None:
        """Join a pipeline, with all passes."""
        super().set_pass_config(config)
        for item, _ in self._passes:
            item.set_pass_config(config)

    def run_on_model(self, model: Model) -> bool:
        """One traversal; True where a pass changed anything."""
        for item, _ in self._passes:
            item.rewrites, item.seconds = 0, 0.0
        active = self._active()
        with paused_collector():
            changed = bool(active) and self._rewrite(model, *_lookup(active), self._is_timed())
        self.rewrites = sum(item.rewrites for item in active)
        regions.fired(item.name for item in active if item.rewrites)
        return changed

    def _active(self) -> list[MatcherPass]:
        only = regions.allowed()
        config = self.config
        return [
            item
            for item, enabled in self._passes
            if (enabled if config is None else config.is_enabled(item, enabled)) and (only is None or item.name in only)
        ]

    def _is_timed(self) -> bool:
        return self.config is not None and self.config.run is not None and self.config.run.timed

    def _rewrite(self, model: Model, index: _Index, open_roots: list[MatcherPass], timed: bool) -> bool:
        changed = False
        pending = self._sequence(model)
        while pending:
            node = pending.popleft()
            if not node.is_attached:
                continue
            if node.attributes:
                for body in node.bodies.values():
                    changed |= self._rewrite(body, index, open_roots, timed)
            for item in index.get((node.domain, node.op_type), open_roots):
                done = _timed_apply(item, node) if timed else item.apply(node)
                for made in reversed(item.take_new_nodes()):
                    # What the callback made and did not put into the graph is not matched.
                    if made.is_consumed or made.is_pinned:
                        pending.appendleft(made)
                if done:
                    item.rewrites += 1
                    changed = True
                    break
        return changed

    def _sequence(self, model: Model) -> deque[Node]:
        return deque(model.ordered_nodes())


class BackwardGraphRewrite(GraphRewrite):
    """Like `GraphRewrite`, from the results to the parameters."""

    def _sequence(self, model: Model) -> deque[Node]:
        return deque(reversed(model.ordered_nodes()))


def _timed_apply(item: MatcherPass, node: Node) -> bool:
    start = time.perf_counter()
    done = item.apply(node)
    item.seconds += time.perf_counter() - start
    return done


def _lookup(passes: list[MatcherPass]) -> tuple[_Index, list[MatcherPass]]:
    """The passes that may match at a node, in registration order: by its operator, and for every other one."""
    open_roots = [item for item in passes if item.matcher is not None and item.matcher.root_kinds is None]
    kinds = {kind for item in passes if item.matcher is not None for kind in item.matcher.root_kinds or ()}
    index: _Index = {kind: [] for kind in kinds}
    for item in passes:
        assert item.matcher is not None
        for kind in kinds if item.matcher.root_kinds is None else item.matcher.root_kinds:
            index[kind].append(item)
    return index, open_roots
