"""The kinds of passes: whole-model passes and matcher passes."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias, TypeVar

from engine.errors import PassError
from engine.ir import Model, Node, OutputLike, as_output
from engine.passes.config import PassConfig
from engine.passes.pattern import Explanation, Matcher

MatchCallback: TypeAlias = Callable[[Matcher], bool]
_NodeT = TypeVar("_NodeT", bound=Node)


class Pass(ABC):
    """What all passes share: a name, and the switches of the pipeline that they run in.

    Attributes:
        name: the class's name, unless the class (or, for containers, the instance) sets another. PassConfig,
            profiles, snapshots and region files use it; in one pipeline no two classes may have the same.
        config: the switches of the pipeline; None outside of one.
        rewrites: how often the last run changed something. Matcher passes count their matches; a model pass may
            count what it does here, else a run that changed something counts as one.
        by_default: False for passes that `CommonOptimizations` runs only where a `PassConfig` enables them.
        is_transformation: False for passes that only look or check: `ENGINE_PASSES_ONLY` never leaves them out.

    A pass holds state while it runs: threads need instances of their own.
    """

    name: str
    config: PassConfig | None = None
    rewrites: int = 0
    by_default: ClassVar[bool] = True
    is_transformation: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def set_pass_config(self, config: PassConfig) -> None:
        """Join a pipeline; called by the manager or rewrite that the pass is registered with."""
        config.note(self)
        self.config = config

    @abstractmethod
    def run_on_model(self, model: Model) -> bool:
        """Transform `model` in place; True where anything changed."""

    def transformation_callback(self, node: Node) -> bool:
        """True where the user asked, through `PassConfig.set_callback`, to leave `node` as it is."""
        callback = None if self.config is None else self.config.callback(self)
        return callback is not None and callback(node)

    def __repr__(self) -> str:
        return f"<pass {self.name}>"


def run_pass(item: Pass, model: Model) -> bool:
    """Run a pass on a model, counting anew; raises `PassError` where it answers neither True nor False."""
    item.rewrites = 0
    changed = item.run_on_model(model)
    if not isinstance(changed, bool):
        raise PassError(
            f"pass {item.name} returned {changed!r}; a pass returns True where it changed the model or False"
        )
    if changed and not item.rewrites:
        item.rewrites = 1
    return changed


class ModelPass(Pass):
    """A pass over a whole model: override `run_on_model`."""


class PassViolation(PassError):
    """A check found that a pass does not keep its contract; the message names the pass and the node."""


class MatcherPass(Pass):
    """One pattern and what to do where it matches: call `register_matcher` in `__init__`.

    The callback gets the `Matcher` and returns True where it replaced the root, which ends matching at that root;
    False lets the next matcher try. It must leave nodes after the root as they are. It makes nodes that should be
    matched again through `register_new_node`, in topological order.
    """

    matcher: Matcher | None = None
    _callback: MatchCallback | None = None

    def __init__(self) -> None:
        self.matcher = None
        self._callback = None
        self._new_nodes: list[weakref.ref[Node]] = []  # weak: a node that left the graph is no longer of interest
        self.seconds = 0.0
        """The time that the last run spent in this pass, where a manager measures it."""

    def register_matcher(self, matcher: Matcher, callback: MatchCallback) -> None:
        """State the pattern and the callback.

        Raises `PassError` where the pass has a matcher already, or the matcher a pass, and for other things.
        """
        if "matcher" not in self.__dict__:
            raise PassError(f"pass {self.name} registers a matcher before it called super().__init__()")
        if not isinstance(matcher, Matcher):
            raise PassError(
                f"pass {self.name} registers {matcher!r}; it takes a Matcher, which names a pattern: "
                f"pattern.Matcher(root, {self.name!r})"
            )
        if not callable(callback):
            raise PassError(
                f"pass {self.name} registers {callback!r} as its callback; it takes a function of a Matcher"
            )
        if self.matcher is not None:
            raise PassError(
                f"pass {self.name} has matcher {self.matcher.name!r} already and cannot register {matcher.name!r}; "
                "write one MatcherPass for each pattern, or join patterns with any_of"
            )
        if matcher.owner is not None:
            raise PassError(
                f"matcher {matcher.name!r} is registered with pass {matcher.owner} already; a matcher holds the state "
                f"of one match, so make a second one for {self.name}"
            )
        matcher.owner = self.name
        self.matcher = matcher
        self._callback = callback

    def register_new_node(self, node: _NodeT) -> _NodeT:
        """Let `node` be matched in this run too, before the nodes that are still to come; returns it."""
        self._new_nodes.append(weakref.ref(node))
        return node

    def take_new_nodes(self) -> list[Node]:
        """The nodes that the last `apply` registered and that still exist; a second call returns none of them."""
        if not self._new_nodes:
            return []
        references, self._new_nodes = self._new_nodes, []
        return [node for reference in references if (node := reference()) is not None]

    def apply(self, node: OutputLike) -> bool:
        """Try the pattern at one node; True where the callback changed it.

        The nodes that the callback registers are not matched here: `take_new_nodes` returns them until the next call.

        Raises `PassError` naming pass and root where a predicate or the callback raised, or where the callback
        returned anything but True or False.
        """
        matcher = self.matcher
        if matcher is None:
            raise PassError(f"pass {self.name} has no matcher; call register_matcher in its __init__")
        self._new_nodes.clear()
        try:
            if not matcher.match(node):
                return False
        except Exception as e:
            raise PassError(f"pass {self.name} failed to match at {_root(node)}: {type(e).__name__}: {e}") from e
        try:
            changed = self._callback(matcher)  # type: ignore[misc]
        except PassViolation:
            raise
        except Exception as e:
            raise PassError(f"pass {self.name} failed at {_root(node)}: {type(e).__name__}: {e}") from e
        finally:
            matcher.clear_state()
        if changed is not True and changed is not False:
            raise PassError(
                f"the callback of pass {self.name} returned {changed!r} at {_root(node)}; "
                "it returns True where it replaced the root and False where it changed nothing"
            )
        return changed

    def explain(self, node: OutputLike) -> Explanation:
        """Why the pattern does, or does not, match at `node`. Raises `PassError` where there is no matcher."""
        if self.matcher is None:
            raise PassError(f"pass {self.name} has no matcher; call register_matcher in its __init__")
        return self.matcher.explain(node)

    def run_on_model(self, model: Model) -> bool:
        """Apply the pass to every node of `model`, bodies included."""
        from engine.passes.rewrite import GraphRewrite

        rewrite = GraphRewrite([self])
        if self.config is not None:
            rewrite.set_pass_config(self.config)
        return rewrite.run_on_model(model)


def _root(value: OutputLike) -> Node:
    return value if isinstance(value, Node) else as_output(value).node
