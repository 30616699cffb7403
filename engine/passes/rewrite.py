"""`MatcherPass`: a pattern and a callback for its matches; `GraphRewrite`: many of them in one traversal."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from engine.errors import PassError
from engine.ir import Model, Node, OutputLike, as_output
from engine.ir.walk import runnable_bodies
from engine.limits import OverBudgetError
from engine.passes import regions
from engine.passes.base import Pass, PassViolation
from engine.passes.config import PassConfig
from engine.passes.late import LatePass
from engine.passes.pattern import Explanation, Matcher
from engine.startup import paused_collector

MatchCallback: TypeAlias = Callable[[Matcher], bool]
_NodeT = TypeVar("_NodeT", bound=Node)
_P = TypeVar("_P", bound="MatcherPass")
_Index: TypeAlias = "dict[tuple[str, str], list[MatcherPass]]"


class MatcherPass(Pass):
    """A pattern and a callback for its matches: call `register_matcher` in `__init__`.

    The callback gets the `Matcher` and returns True if it replaced the root, which ends matching at that root; after
    False, the next matcher is tried. It must not change nodes after the root. New nodes that should be matched too are
    registered with `register_new_node`, in topological order. If the budget has no room for a constant that the
    callback makes (`fusion.derived_constant`), which it does before it changes the graph, the match counts as False.
    """

    matcher: Matcher | None = None
    _callback: MatchCallback | None = None

    def __init__(self) -> None:
        self.matcher = None
        self._callback = None
        self._new_nodes: list[weakref.ref[Node]] = []  # weak: a node that left the graph need not be matched
        self.seconds = 0.0
        """The seconds that the last run spent in this pass, if a manager measures them."""

    def register_matcher(self, matcher: Matcher, callback: MatchCallback) -> None:
        """Register the pattern and the callback.

        Raises `PassError` if the pass already has a matcher, if the matcher already has a pass, and for wrong types.
        """
        if "matcher" not in self.__dict__:
            raise PassError(f"pass {self.name} registers a matcher before calling super().__init__()")
        if not isinstance(matcher, Matcher):
            raise PassError(
                f"pass {self.name} registers {matcher!r}; expected a Matcher, which names a pattern: "
                f"pattern.Matcher(root, {self.name!r})"
            )
        if not callable(callback):
            raise PassError(
                f"pass {self.name} registers {callback!r} as its callback; expected a function that takes a Matcher"
            )
        if self.matcher is not None:
            raise PassError(
                f"pass {self.name} already has matcher {self.matcher.name!r} and cannot register {matcher.name!r}; "
                "write one MatcherPass for each pattern, or join patterns with any_of"
            )
        if matcher.owner is not None:
            raise PassError(
                f"matcher {matcher.name!r} is already registered with pass {matcher.owner}; a matcher holds the state "
                f"of one match, so create a second one for {self.name}"
            )
        matcher.owner = self.name
        self.matcher = matcher
        self._callback = callback

    def register_new_node(self, node: _NodeT) -> _NodeT:
        """Match `node` in this run too, before the remaining nodes; returns it."""
        self._new_nodes.append(weakref.ref(node))
        return node

    def take_new_nodes(self) -> list[Node]:
        """The nodes that the last `apply` registered and that still exist; a second call does not return them again."""
        if not self._new_nodes:
            return []
        references, self._new_nodes = self._new_nodes, []
        return [node for reference in references if (node := reference()) is not None]

    def apply(self, node: OutputLike) -> bool:
        """Try the pattern at one node; True if the callback changed it.

        The nodes that the callback registers are not matched here: `take_new_nodes` returns them until the next call.

        Raises `PassError` naming pass and root if a predicate or the callback raised, or if the callback returned
        anything but True or False.
        """
        matcher = self.matcher
        if matcher is None:
            raise PassError(f"pass {self.name} has no matcher; call register_matcher in its __init__")
        if self._new_nodes:
            self._new_nodes.clear()
        try:
            if not matcher.match(node):
                return False
        except TimeoutError:
            raise
        except Exception as e:
            raise PassError(f"pass {self.name} failed to match at {_root(node)}: {type(e).__name__}: {e}") from e
        try:
            changed = self._callback(matcher)  # type: ignore[misc]
        except (PassViolation, TimeoutError):
            raise
        except OverBudgetError:
            return False
        except Exception as e:
            raise PassError(f"pass {self.name} failed at {_root(node)}: {type(e).__name__}: {e}") from e
        finally:
            matcher.clear_state()
        if changed is not True and changed is not False:
            raise PassError(
                f"the callback of pass {self.name} returned {changed!r} at {_root(node)}; "
                "expected True if it replaced the root and False if it changed nothing"
            )
        return changed

    def may_change(self, model: Model) -> bool:
        """False if `model` has no operator that the root of the pattern can be, nor bodies, which may have one."""
        kinds = None if self.matcher is None else self.matcher.root_kinds
        return kinds is None or model.has_nodes_of(kinds)

    def explain(self, node: OutputLike) -> Explanation:
        """Why the pattern does, or does not, match at `node`. Raises `PassError` if there is no matcher."""
        if self.matcher is None:
            raise PassError(f"pass {self.name} has no matcher; call register_matcher in its __init__")
        return self.matcher.explain(node)

    def run_on_model(self, model: Model) -> bool:
        """Apply the pass to every node of `model`, bodies included."""
        if not self.may_change(model):
            return False
        rewrite = GraphRewrite([self])
        if self.config is not None:
            rewrite.set_pass_config(self.config)
        return rewrite.run_on_model(model)


class GraphRewrite(Pass):
    """Runs several matcher passes over the nodes of a model, each node once, in topological order.

    At a node the passes are tried in registration order until one returns True. Passes whose pattern has a typed root
    are looked up by the node's operator, so passes that cannot match cost nothing. Nodes registered by
    `register_new_node` are visited next, before the rest of the sequence. Bodies of control flow are rewritten first.

    Args:
        passes: matcher passes, or their classes; one that is not imported yet may match operators that are in the model
            when it begins, or that the others make.
        name: the name in profiles and `PassConfig`; by default the class's name.
    """

    def __init__(
        self, passes: Iterable[MatcherPass | type[MatcherPass] | LatePass] = (), name: str | None = None
    ) -> None:
        self._passes: list[tuple[MatcherPass | LatePass, bool]] = []
        self._root_kinds: frozenset[tuple[str, str]] | None = frozenset()
        if name is not None:
            self.name = name
        for item in passes:
            if isinstance(item, LatePass):
                self._passes.append((item, True))
            else:
                self.add_matcher(item)

    def add_matcher(self, matcher_pass: _P | type[_P], enabled: bool = True) -> _P:
        """Append a pass (or an instance of a pass class) and return it; `enabled=False` requires `PassConfig.enable`.

        Raises `PassError` if it is not a MatcherPass, is already added, or has no matcher.
        """
        instance = matcher_pass() if isinstance(matcher_pass, type) else matcher_pass
        if not isinstance(instance, MatcherPass):
            raise PassError(f"{self.name} takes MatcherPass objects, got {instance!r}")
        if instance.matcher is None:
            raise PassError(f"pass {instance.name} has no matcher; call register_matcher in its __init__")
        if any(item is instance for item, _ in self._passes):
            raise PassError(f"pass {instance.name} is already in {self.name}")
        if self.config is not None:
            instance.set_pass_config(self.config)
        self._passes.append((instance, enabled))
        self._note_roots(instance)
        return instance

    @property
    def matchers(self) -> list[MatcherPass]:
        """The passes that run together at each node, in the order of registration, which is the order of trial."""
        self._import([item for item in self.members if isinstance(item, LatePass)])
        return [item for item, _ in self._passes if isinstance(item, MatcherPass)]

    @property
    def members(self) -> list[MatcherPass | LatePass]:
        """As `matchers`, without importing any."""
        return [item for item, _ in self._passes]

    def set_pass_config(self, config: PassConfig) -> None:
        """Join a pipeline, with all passes."""
        super().set_pass_config(config)
        for item, _ in self._passes:
            item.set_pass_config(config)

    def may_change(self, model: Model) -> bool:
        """Whether `may_change` of any of the passes is true."""
        if self._root_kinds is None or model.has_nodes_of(self._root_kinds):
            return True
        return any(isinstance(item, LatePass) and item.may_change(model) for item in self.members)

    def run_on_model(self, model: Model) -> bool:
        """One traversal; True if a pass changed anything."""
        for item, _ in self._passes:
            item.rewrites, item.seconds = 0, 0.0
        self.rewrites = 0
        if not self.may_change(model):
            return False
        self._import(self._awaited(model))
        active = self._active()
        with paused_collector():
            changed = bool(active) and self._rewrite(model, *_lookup(active), self._is_timed())
        self.rewrites = sum(item.rewrites for item in active)
        if self.rewrites:
            regions.fired(item.name for item in active if item.rewrites)
        return changed

    def _awaited(self, model: Model) -> list[LatePass]:
        """The passes that are not imported yet, and that may match in this traversal."""
        waiting = [item for item in self.members if isinstance(item, LatePass)]
        if not waiting:
            return []
        made = frozenset[str]().union(*(item.makes for item in self.members))
        return [item for item in waiting if item.may_match(model, made)]

    def _import(self, passes: Sequence[LatePass]) -> None:
        for index, (item, enabled) in enumerate(self._passes):
            if item in passes and isinstance(item, LatePass):
                made = item.loaded()
                assert isinstance(made, MatcherPass), made
                self._passes[index] = (made, enabled)
                self._note_roots(made)

    def _note_roots(self, item: MatcherPass) -> None:
        kinds = None if item.matcher is None else item.matcher.root_kinds
        self._root_kinds = None if kinds is None or self._root_kinds is None else self._root_kinds | kinds

    def _active(self) -> list[MatcherPass]:
        selection = regions.selection()
        config = self.config
        return [
            item
            for item, enabled in self._passes
            if isinstance(item, MatcherPass)
            and (enabled if config is None else config.is_enabled(item, enabled))
            and (selection is None or selection.runs(item.name))
        ]

    def _is_timed(self) -> bool:
        return self.config is not None and self.config.run is not None and self.config.run.timed

    def _rewrite(self, model: Model, index: _Index, open_roots: list[MatcherPass], timed: bool) -> bool:
        changed = is_stale = False
        pending = deque(self._sequence(model.ordered_nodes() if open_roots else model.nodes_of(index)))
        following, insert = pending.popleft, pending.appendleft
        while pending:
            node = following()
            if changed and not node.is_attached:
                continue
            if node.attributes:
                for body in runnable_bodies(node):
                    changed |= self._rewrite(body, index, open_roots, timed)
            for item in index.get((node.domain, node.op_type), open_roots):
                done = _timed_apply(item, node) if timed else item.apply(node)
                if item._new_nodes:
                    for reference in reversed(item._new_nodes):
                        made = reference()
                        # Nodes that the callback made but did not insert into the graph are not matched.
                        if made is not None and (made.is_consumed or made.is_pinned):
                            insert(made)
                    item._new_nodes.clear()
                if done:
                    item.rewrites += 1
                    changed = True
                    if not is_stale:
                        is_stale = True
                        model.forget_order()
                    break
        return changed

    def _sequence(self, nodes: list[Node]) -> list[Node]:
        """The order in which nodes are visited."""
        return nodes


class BackwardGraphRewrite(GraphRewrite):
    """Like `GraphRewrite`, from the results to the parameters."""

    def _sequence(self, nodes: list[Node]) -> list[Node]:
        return nodes[::-1]


def _timed_apply(item: MatcherPass, node: Node) -> bool:
    start = time.perf_counter()
    done = item.apply(node)
    item.seconds += time.perf_counter() - start
    return done


def _lookup(passes: list[MatcherPass]) -> tuple[_Index, list[MatcherPass]]:
    """The passes that may match, in registration order: by operator, and those for all other operators."""
    open_roots = [item for item in passes if item.matcher is not None and item.matcher.root_kinds is None]
    kinds = {kind for item in passes if item.matcher is not None for kind in item.matcher.root_kinds or ()}
    index: _Index = {kind: [] for kind in kinds}
    for item in passes:
        assert item.matcher is not None
        for kind in kinds if item.matcher.root_kinds is None else item.matcher.root_kinds:
            index[kind].append(item)
    return index, open_roots


def _root(value: OutputLike) -> Node:
    return value if isinstance(value, Node) else as_output(value).node
