"""`GraphRewrite`: many matcher passes in one traversal."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from engine.errors import PassError
from engine.ir import Model, Node
from engine.passes.base import MatcherPass, Pass
from engine.passes.config import PassConfig

_P = TypeVar("_P", bound=MatcherPass)
_Index = dict[tuple[str, str], list[MatcherPass]]


class GraphRewrite(Pass):
    """Runs several matcher passes over the nodes of a model, each node once, in topological order.

    At a node the passes are tried in registration order until one returns True. Where every pattern has a typed
    root, passes are looked up by the node's operator, so passes that cannot match cost nothing. Nodes registered
    by `register_new_node` come next, before the rest of the sequence. Bodies of control flow are rewritten first.
    """

    def __init__(self, passes: Iterable[MatcherPass] = (), name: str | None = None) -> None:
        self._passes: list[tuple[MatcherPass, bool]] = []
        self._label = name
        for item in passes:
            self.add_matcher(item)

    def add_matcher(self, matcher_pass: _P, enabled: bool = True) -> _P:
        """Append a pass; `enabled=False` waits for `PassConfig.enable`. Raises `PassError` for one added twice."""
        if not isinstance(matcher_pass, MatcherPass):
            raise PassError(f"{self.label} takes MatcherPass objects, got {matcher_pass!r}")
        if matcher_pass.matcher is None:
            raise PassError(f"pass {matcher_pass.name} has no matcher; call register_matcher in its __init__")
        if any(item is matcher_pass for item, _ in self._passes):
            raise PassError(f"pass {matcher_pass.name} is in {self.label} already")
        self._passes.append((matcher_pass, enabled))
        if self.config is not None:
            matcher_pass.set_pass_config(self.config)
        return matcher_pass

    @property
    def label(self) -> str:
        """The name for people: the one given, else the class's."""
        return self._label or self.name

    @property
    def matchers(self) -> list[MatcherPass]:
        """The passes, in registration order."""
        return [item for item, _ in self._passes]

    def set_pass_config(self, config: PassConfig) -> None:
        """Join a pipeline, with all passes."""
        self.config = config
        for item, _ in self._passes:
            item.set_pass_config(config)

    def run_on_model(self, model: Model) -> bool:
        """One traversal; True where a pass changed anything."""
        active = [
            item for item, enabled in self._passes if self.config is None or self.config.is_enabled(type(item), enabled)
        ]
        if self.config is None:
            active = [item for item, enabled in self._passes if enabled]
        return bool(active) and self._rewrite(model, active, _index(active))

    def _rewrite(self, model: Model, active: list[MatcherPass], index: _Index | None) -> bool:
        changed = False
        pending = self._sequence(model)
        while pending:
            node = pending.popleft()
            if not node._attached:
                continue
            if node.attributes:
                for body in node.bodies.values():
                    changed |= self._rewrite(body, active, index)
            candidates = active if index is None else index.get((node.domain, node.op_type), ())
            for item in candidates:
                done = item.apply(node)
                if item.new_nodes:
                    pending.extendleft(reversed(item.take_new_nodes()))
                if done:
                    changed = True
                    break
        return changed

    def _sequence(self, model: Model) -> deque[Node]:
        return deque(model.ordered_nodes())


class BackwardGraphRewrite(GraphRewrite):
    """Like `GraphRewrite`, from the results to the parameters."""

    def _sequence(self, model: Model) -> deque[Node]:
        return deque(reversed(model.ordered_nodes()))


def _index(passes: list[MatcherPass]) -> _Index | None:
    """The passes by the operator of their root; None where a pattern leaves its root's type open."""
    index: _Index = {}
    for item in passes:
        assert item.matcher is not None
        kinds = item.matcher.root_kinds
        if kinds is None:
            return None
        for kind in kinds:
            index.setdefault(kind, []).append(item)
    return index
