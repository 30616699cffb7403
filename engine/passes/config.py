"""`PassConfig`: which passes of a pipeline run, and on which nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

from engine.errors import PassError
from engine.ir import Constant, Node
from engine.ops.traits import traits_of
from engine.passes.snapshots import Snapshots
from engine.startup import dataclass

PassLike: TypeAlias = type | str
"""A pass class, or the name of a pass."""
NodeCallback: TypeAlias = Callable[[Node], bool | str | None]
_NOTHING: Final[frozenset[str]] = frozenset()


class PassConfig:
    """The configuration of a pipeline, shared by a manager, its passes and nested managers.

    Methods have the same effect before and after a pass is registered, and on the config of any nested manager:
    registering a manager merges its config with the outer one. Passes are given by class or name. Not thread-safe, like
    the pipelines themselves.
    """

    __slots__ = ("_shared",)

    def __init__(self) -> None:
        self._shared = _Shared([self])

    def enable(self, *passes: PassLike) -> None:
        """Run these passes, even if they are registered as disabled."""
        for item in passes:
            self._shared.switches[_name(item)] = True

    def disable(self, *passes: PassLike) -> None:
        """Skip these passes, also in nested managers."""
        for item in passes:
            self._shared.switches[_name(item)] = False

    def limit_to(
        self, operators: Collection[tuple[str, str]], has_kernel: Callable[[Node], bool] | None = None
    ) -> None:
        """Run the passes that help a device with kernels for these operators, (domain, name) pairs.

        Passes that make other operators are skipped: they would make a model that the device can run into one that it
        cannot. Passes that make internal operators, for which only some devices have kernels, run if all of these are
        among the pairs. With `has_kernel`, decompositions run on the nodes for which it is False. `enable`, `disable`
        and `set_callback` take precedence. See `Pass.makes`, `Pass.removes`, and `LoweringTable.configure`.
        """
        self._shared.operators = frozenset(f"{domain}.{name}" if domain else name for domain, name in operators)
        self._shared.has_kernel = has_kernel

    def is_enabled(self, item: object, by_default: bool | None = True) -> bool:
        """True if the pass runs; `by_default` is how it was registered, None to decide by the operators that it makes
        and removes.
        """
        given = self._shared.switches.get(_name(item))
        if given is not None:
            return given
        makes: frozenset[str] = getattr(item, "makes", _NOTHING)
        operators = self._shared.operators
        if by_default is None:
            is_decomposition = bool(getattr(item, "removes", _NOTHING))
            if operators is None:
                return not is_decomposition and not any("." in name for name in makes)
            by_default = not is_decomposition or self._shared.has_kernel is not None
        return by_default and (operators is None or makes <= operators)

    def claims(self, operator: str) -> bool:
        """Whether the device of `limit_to` has kernels for an operator, named as in `Pass.makes`; False without one."""
        return self._shared.operators is not None and operator in self._shared.operators

    def lowers(self, made: Iterable[Node]) -> bool:
        """Whether the device has kernels for the operators of nodes that a decomposition makes.

        Nodes that compute with shapes and constants alone need none: they are folded. True without a device.
        """
        operators = self._shared.operators
        if operators is None:
            return True
        folded = dict.fromkeys(made)
        for node in folded:
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            if name not in operators and not _is_folded(node, folded):
                return False
        return True

    def set_callback(self, *passes: PassLike, callback: NodeCallback) -> None:
        """Set the callback that decides, for these passes (or all, if none are given), which roots to skip.

        If it returns True, or a text with the reason, the node is not changed. A pass calls it through
        `self.transformation_callback(node)`, or `self.reason_to_skip(node)`.
        """
        if not passes:
            self._shared.default = callback
        for item in passes:
            self._shared.callbacks[_name(item)] = callback

    def callback(self, item: object) -> NodeCallback | None:
        """The callback set for a pass, otherwise the one for all passes, otherwise None.

        A decomposition without either leaves the nodes for which the device of `limit_to` has a kernel.
        """
        shared = self._shared
        default = shared.default or (shared.has_kernel if getattr(item, "removes", _NOTHING) else None)
        return shared.callbacks.get(_name(item), default) if shared.callbacks else default

    def join(self, outer: PassConfig) -> None:
        """Merge with `outer`; where both configure a pass, `outer` takes precedence."""
        mine, theirs = self._shared, outer._shared
        if mine is theirs:
            return
        for name, kind in mine.known.items():
            theirs.note(name, kind)
        theirs.switches = mine.switches | theirs.switches
        theirs.callbacks = mine.callbacks | theirs.callbacks
        theirs.default = theirs.default or mine.default
        if theirs.operators is None:
            theirs.operators, theirs.has_kernel = mine.operators, mine.has_kernel
        for config in mine.members:
            config._shared = theirs
        theirs.members += mine.members

    def note(self, name: str, kind: type | None) -> None:
        """Record that a pass is part of the pipeline; None for a class that is not imported yet.

        Raises `PassError` if another class has its name.
        """
        self._shared.note(name, kind)

    def unknown_names(self) -> list[str]:
        """Configured names that no pass of the pipeline has, with close matches."""
        shared = self._shared
        texts = []
        for name in dict.fromkeys([*shared.switches, *shared.callbacks]):
            if name not in shared.known:
                import difflib  # for this message alone

                close = difflib.get_close_matches(name, list(shared.known), n=1)
                texts.append(f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name))
        return texts

    @property
    def run(self) -> PipelineRun | None:
        """The settings of the run in progress; None outside a run."""
        return self._shared.run

    @run.setter
    def run(self, run: PipelineRun | None) -> None:
        self._shared.run = run


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A run in progress: the number `depth` of enclosing managers, and their settings."""

    checked: bool = False
    timed: bool = False
    snapshots: Snapshots | None = None
    depth: int = 0


class _Shared:
    """The state that the configs of one pipeline share."""

    __slots__ = ("callbacks", "default", "has_kernel", "known", "members", "operators", "run", "switches")

    def __init__(self, members: list[PassConfig]) -> None:
        self.members = members
        self.switches: dict[str, bool] = {}
        self.callbacks: dict[str, NodeCallback] = {}
        self.default: NodeCallback | None = None
        self.known: dict[str, type | None] = {}
        self.operators: frozenset[str] | None = None
        self.has_kernel: Callable[[Node], bool] | None = None
        self.run: PipelineRun | None = None

    def note(self, name: str, kind: type | None) -> None:
        known = self.known.get(name)
        if known is None:
            self.known[name] = kind
        elif kind is not None and known is not kind:
            raise PassError(
                f"two passes are named {name!r}: {known.__module__}.{known.__qualname__} and "
                f"{kind.__module__}.{kind.__qualname__}; "
                "PassConfig and region files could not distinguish them; give one of them another `name`"
            )


def _name(item: object) -> str:
    if isinstance(item, str):
        return item
    name = getattr(item, "name", None)
    if not isinstance(name, str):
        raise PassError(f"expected a pass class or the name of a pass, got {item!r}")
    return name


def _is_folded(node: Node, known: dict[Node, bool | None]) -> bool:
    """Whether a value is computed from shapes and constants alone, by the nodes in `known`, which has the answers."""
    if isinstance(node, Constant) or traits_of(node).shape_only:
        return True
    if node not in known:
        return False
    answer = known[node]
    if answer is None:
        sources = [value.node for value in node.input_values if value is not None]
        answer = known[node] = bool(sources) and all(_is_folded(source, known) for source in sources)
    return answer
