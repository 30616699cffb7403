"""The checks of `Manager(checked=True)`: return values, names, rt_info, and the scope of edits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engine.errors import EngineError, PassError
from engine.ir import Constant, Model, Node, Output, TensorType, ValueType
from engine.ir.node import new_id
from engine.ir.walk import all_nodes
from engine.passes.base import Pass, PassViolation, run_pass
from engine.passes.compare import ModelComparison
from engine.passes.folding import bytes_allowed, is_foldable, known_bytes
from engine.passes.pattern import Matcher
from engine.passes.rewrite import GraphRewrite, MatchCallback, MatcherPass
from engine.passes.runtime_info import ORIGINS, is_operation


def checked_run(item: Pass, model: Model) -> bool:
    """Run `item` on `model` with every check; after a failure the caller restores the model.

    Raises `PassError` naming the pass and the node for: a cycle, a dangling port, a network input or output that was
    dropped, renamed or given another type, types that consumers cannot take, a return value that contradicts the
    changes, lost friendly names or rt_info, a constant subgraph left unfolded, and, for matcher passes, edits of nodes
    after the root.
    """
    # Infer types first, so that their changes and existing errors are not attributed to the pass.
    _validate(model, f"model `{model.name}` is broken before pass {item.name}")
    with _origins(model):
        reference = model.clone()
        before = {node: node.annotations.get(ORIGINS, ()) for node in all_nodes(model)}
        edges = {node: list(node.sources) for node in before}
        changed = _run_watched(item, model)
        _validate(model, f"pass {item.name} broke model `{model.name}`")
        _check_border(item, reference, model)
        _check_modified(item, reference, model, changed)
        _check_carried(item, before, model)
        _check_output_names(item, reference, model)
        _check_inner_names(item, before, edges)
        _check_folded(item, before, model)
    return changed


@contextmanager
def _origins(model: Model) -> Iterator[None]:
    """Mark every operation, to trace where its rt_info is copied; nested passes are not marked again."""
    operations = [node for node in all_nodes(model) if is_operation(node)]
    is_outermost = not any(ORIGINS in node.annotations for node in operations)
    if is_outermost:
        for node in operations:
            node.rt_info[ORIGINS] = (node.id,)
    yield
    if is_outermost:
        for node in all_nodes(model):
            if ORIGINS in node.annotations:
                node.rt_info = {key: value for key, value in node.annotations.items() if key != ORIGINS}


def _run_watched(item: Pass, model: Model) -> bool:
    watched = [item] if isinstance(item, MatcherPass) else item.matchers if isinstance(item, GraphRewrite) else []
    original = [(matcher_pass, matcher_pass._callback) for matcher_pass in watched]
    try:
        for matcher_pass, callback in original:
            assert callback is not None
            matcher_pass._callback = _watch(matcher_pass, callback)
        return run_pass(item, model)
    finally:
        for matcher_pass, callback in original:
            matcher_pass._callback = callback


# -- while a matcher pass runs ----------------------------------------------------------------------------


def _watch(matcher_pass: MatcherPass, callback: MatchCallback) -> MatchCallback:
    """The callback, wrapped to compare all nodes after the root before and after the call."""

    def watched(matcher: Matcher) -> bool:
        root = matcher.match_root
        matched = {root, *matcher.matched_nodes}
        readers = [target for output in root.outputs for target in output.target_inputs]
        after = {node: _Later(node) for node in _downstream(root)}
        newest = new_id()
        changed = callback(matcher)
        for node, before in after.items():
            if node.is_attached and (before.differs(node) or _was_rewired(node, before.sources, matched, set(after))):
                raise PassViolation(
                    f"pass {matcher_pass.name} at {root} changed {node}, which comes after the root; "
                    "match that node in a separate pass"
                )
        if root.has_own_name and not root.is_attached and root.num_outputs == 1:
            for target in readers:
                if target.node.is_attached and target.index < target.node.num_inputs:
                    _check_name(matcher_pass, root, newest, target.node.sources[target.index])
        return changed

    return watched


class _Later:
    """The state of a node after the root, before the callback ran."""

    __slots__ = ("attributes", "name", "rt_info", "sources")

    def __init__(self, node: Node) -> None:
        self.attributes = dict(node.attributes)
        self.name = node.friendly_name
        self.rt_info = dict(node.annotations)
        self.sources = list(node.sources)

    def differs(self, node: Node) -> bool:
        """True if attributes, name or rt_info have changed."""
        same = _same_items(self.attributes, node.attributes) and _same_items(self.rt_info, node.annotations)
        return not same or node.friendly_name != self.name


def _downstream(root: Node) -> list[Node]:
    seen: dict[Node, None] = {}
    stack = [root]
    while stack:
        for output in stack.pop().outputs:
            for target in output.target_inputs:
                if target.node not in seen:
                    seen[target.node] = None
                    stack.append(target.node)
    return list(seen)


def _same_items(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return before.keys() == after.keys() and all(before[key] is after[key] for key in before)


def _was_rewired(node: Node, sources: list[Output | None], matched: set[Node], after: set[Node]) -> bool:
    """True if an input of `node` changed, except where its source was replaced for all consumers."""
    if len(sources) != len(node.sources):
        return True
    for old, new in zip(sources, node.sources, strict=True):
        if old == new or (old is not None and old.node in matched):
            continue
        if old is None or old.node in after or old.num_consumers:
            return True
    return False


def _check_name(matcher_pass: MatcherPass, root: Node, newest: int, source: Output | None) -> None:
    """The replacement of a named node must have its name, unless it existed before, as in an elimination."""
    if source is None or source.node is root or source.node.id < newest:
        return
    if source.node.friendly_name != root.friendly_name:
        raise PassViolation(
            f"pass {matcher_pass.name} replaced {root} by {source.node} and lost its friendly name; "
            "set new.friendly_name = root.friendly_name"
        )


# -- after a pass ran -------------------------------------------------------------------------------------


def _validate(model: Model, problem: str) -> None:
    try:
        model.validate()
    except EngineError as e:
        raise PassError(f"{problem}: {e}") from e


def _check_border(item: Pass, before: Model, after: Model) -> None:
    """Network inputs, outputs and sinks must be kept, in order, with compatible types."""
    for what, old, new in (
        ("input", before.parameters, after.parameters),
        ("output", before.results, after.results),
    ):
        names = [node.friendly_name for node in new]
        for position, node in enumerate(old):
            if node.friendly_name not in names:
                raise PassError(f"pass {item.name} dropped the network {what} `{node.friendly_name}`")
            if names[position] != node.friendly_name:
                raise PassError(f"pass {item.name} moved the network {what} `{node.friendly_name}` from {position}")
            if not _keeps(node.type, new[position].type):  # type: ignore[attr-defined]
                raise PassError(
                    f"pass {item.name} changed network {what} `{node.friendly_name}` from "
                    f"{node.type} to {new[position].type}"  # type: ignore[attr-defined]
                )
    if len(after.sinks) < len(before.sinks):
        raise PassError(f"pass {item.name} dropped one of the sinks {', '.join(map(str, before.sinks))}")


def _keeps(old: ValueType, new: ValueType) -> bool:
    if isinstance(old, TensorType) and isinstance(new, TensorType):
        return old.element_type is new.element_type and old.shape.compatible(new.shape)
    return type(old) is type(new)


def _check_modified(item: Pass, before: Model, after: Model, changed: bool) -> None:
    comparison = ModelComparison(exact=True)
    comparison.models(before, after)
    if changed and not comparison.found:
        raise PassError(f"pass {item.name} returned True and changed nothing")
    if not changed and comparison.found:
        raise PassError(f"pass {item.name} returned False and changed the model: {'; '.join(comparison.found)}")


def _check_carried(item: Pass, before: Mapping[Node, tuple[int, ...]], model: Model) -> None:
    """Every operation must have the rt_info of the operations that it replaces."""
    for node in all_nodes(model):
        if not is_operation(node):
            continue
        origins = node.annotations.get(ORIGINS, ())
        lost = not origins if node not in before else not set(origins) >= set(before[node])
        if lost:
            what = "dropped the rt_info of" if node in before else "copied no rt_info to"
            raise PassError(f"pass {item.name} {what} {node}; call copy_runtime_info(replaced_nodes, new_nodes)")


def _check_output_names(item: Pass, before: Model, after: Model) -> None:
    """A node that newly computes a network output must keep the friendly name of the previous one."""
    for old_result, new_result in zip(before.results, after.results, strict=False):
        old, new = old_result.input_value(0).node, new_result.input_value(0).node
        if old.has_own_name and old.num_outputs == new.num_outputs == 1 and old.friendly_name != new.friendly_name:
            raise PassError(
                f"pass {item.name} lost the friendly name of {old}: network output `{old_result.friendly_name}` is "
                f"now computed by {new}; set new.friendly_name = old.friendly_name, or use replace_output_update_name"
            )


def _check_inner_names(
    item: Pass, before: Mapping[Node, tuple[int, ...]], edges: Mapping[Node, list[Output | None]]
) -> None:
    """If a new node replaces a single named node, the consumers must read a node with that name."""
    for node, sources in edges.items():
        if not node.is_attached or len(sources) != node.num_inputs:
            continue
        for old, new in zip(sources, node.sources, strict=True):
            if old is None or new is None or old == new or old.node.is_attached or new.node in before:
                continue
            if not old.node.has_own_name or new.node.has_own_name or old.node.num_outputs != new.node.num_outputs:
                continue
            if before[old.node] and new.node.annotations.get(ORIGINS) == before[old.node]:
                raise PassError(
                    f"pass {item.name} replaced {old.node} by {new.node} and lost its friendly name; "
                    "set new.friendly_name = old.friendly_name"
                )


def _check_folded(item: Pass, before: Mapping[Node, object], model: Model) -> None:
    for node in all_nodes(model):
        if (
            node not in before
            and not isinstance(node, Constant)
            and is_foldable(node)
            and known_bytes(node) <= bytes_allowed(node)
        ):
            raise PassError(
                f"pass {item.name} left the constant subgraph that ends in {node} unfolded; "
                "call constant_fold(node) where it is created, or run ConstantFolding in the pass"
            )
