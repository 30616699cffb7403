"""The kinds of passes: whole-model passes and matcher passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias, TypeVar

from engine.errors import PassError
from engine.ir import Model, Node, OutputLike, as_output
from engine.passes.config import PassConfig
from engine.passes.pattern import Matcher

MatchCallback: TypeAlias = Callable[[Matcher], bool]
_NodeT = TypeVar("_NodeT", bound=Node)


class Pass(ABC):
    """What all passes share: a name, and the switches of the pipeline that they run in.

    `name` is the class's name unless the class sets it; PassConfig, profiles, snapshots and region files use it.
    """

    name: ClassVar[str]
    config: PassConfig | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def set_pass_config(self, config: PassConfig) -> None:
        """Join a pipeline; called by the manager or rewrite that the pass is registered with."""
        self.config = config

    @abstractmethod
    def run_on_model(self, model: Model) -> bool:
        """Transform `model` in place; True where anything changed."""

    def transformation_callback(self, node: Node) -> bool:
        """True where the user asked, through `PassConfig.set_callback`, to leave `node` as it is."""
        callback = None if self.config is None else self.config.callback(type(self))
        return callback is not None and callback(node)

    def __repr__(self) -> str:
        return f"<pass {self.name}>"


class ModelPass(Pass):
    """A pass over a whole model: override `run_on_model`."""


class MatcherPass(Pass):
    """One pattern and what to do where it matches: call `register_matcher` in `__init__`.

    The callback gets the `Matcher` and returns True where it replaced the root, which ends matching at that root;
    False lets the next matcher try. It must leave nodes after the root as they are. It makes nodes that should be
    matched again through `register_new_node`, in topological order.
    """

    def __init__(self) -> None:
        self.matcher: Matcher | None = None
        self._callback: MatchCallback | None = None
        self.new_nodes: list[Node] = []

    def register_matcher(self, matcher: Matcher, callback: MatchCallback) -> None:
        """State the pattern and the callback. Raises `PassError` where the pass has a matcher already."""
        if self.matcher is not None:
            raise PassError(
                f"pass {self.name} has matcher {self.matcher.name!r} already and cannot register {matcher.name!r}; "
                "write one MatcherPass for each pattern, or join patterns with any_of"
            )
        self.matcher = matcher
        self._callback = callback

    def register_new_node(self, node: _NodeT) -> _NodeT:
        """Let `node` be matched in this run too, before the nodes that are still to come; returns it."""
        self.new_nodes.append(node)
        return node

    def take_new_nodes(self) -> list[Node]:
        """The nodes registered since the last call."""
        nodes, self.new_nodes = self.new_nodes, []
        return nodes

    def apply(self, node: OutputLike) -> bool:
        """Try the pattern at one node; True where the callback changed it.

        Raises `PassError` naming pass and root where the callback raised.
        """
        matcher = self.matcher
        if matcher is None:
            raise PassError(f"pass {self.name} has no matcher; call register_matcher in its __init__")
        if not matcher.match(node):
            return False
        assert self._callback is not None
        try:
            changed = self._callback(matcher)
        except Exception as e:
            root = node if isinstance(node, Node) else as_output(node).node
            raise PassError(f"pass {self.name} failed at {root}: {type(e).__name__}: {e}") from e
        finally:
            matcher.clear_state()
        return bool(changed)

    def run_on_model(self, model: Model) -> bool:
        """Apply the pass to every node of `model`, bodies included."""
        from engine.passes.rewrite import GraphRewrite

        rewrite = GraphRewrite([self])
        if self.config is not None:
            rewrite.set_pass_config(self.config)
        return rewrite.run_on_model(model)
