"""What `Manager(checked=True)` catches: a pass that does not do what its result says, or loses something."""

from __future__ import annotations

from typing import Any

from engine.errors import EngineError, PassError
from engine.ir import Constant, Model, Node, Output
from engine.passes.base import MatcherPass, Pass
from engine.passes.compare import compare_models
from engine.passes.folding import is_foldable
from engine.passes.rewrite import GraphRewrite
from engine.passes.runtime_info import FUSED_NAMES, check_rt_info, init_node_info


def checked_run(item: Pass, model: Model) -> bool:
    """Run `item` on `model` with every check; a failure leaves the model as it was.

    Raises `PassError` naming the pass and the node for: a cycle, a dropped or renamed network output, types that
    consumers cannot take, a result that contradicts what happened, lost friendly names or rt_info, a constant
    subgraph left unfolded, and, for matcher passes, edits of nodes behind the root.
    """
    backup = model.clone()
    known = set(model.ordered_nodes())
    named = any(FUSED_NAMES in (node._rt_info or {}) for node in known)
    if not named:
        init_node_info(model)
    reference = model.clone()
    try:
        changed = _run_watched(item, model)
        _check_outputs(item, reference, model)
        _check_modified(item, reference, model, changed)
        check_rt_info(model)
        _check_folded(item, known, model)
    except BaseException as e:
        _restore(model, backup)
        if isinstance(e, PassError) or not isinstance(e, EngineError):
            raise
        raise PassError(f"pass {item.name} broke model `{model.name}`: {e}") from e
    if not named:
        _forget_names(model)
    return changed


def _run_watched(item: Pass, model: Model) -> bool:
    watched = [item] if isinstance(item, MatcherPass) else item.matchers if isinstance(item, GraphRewrite) else []
    original: list[tuple[MatcherPass, Any]] = []
    for matcher_pass in watched:
        original.append((matcher_pass, matcher_pass._callback))
        matcher_pass._callback = _watch(matcher_pass, matcher_pass._callback)
    try:
        changed = item.run_on_model(model)
    finally:
        for matcher_pass, callback in original:
            matcher_pass._callback = callback
    if not isinstance(changed, bool):
        raise PassError(f"pass {item.name} returned {changed!r}; a pass returns True or False")
    model.validate()
    return changed


def _watch(matcher_pass: MatcherPass, callback: Any) -> Any:
    """The callback, with a look at everything behind the root before and after."""

    def watched(matcher: Any) -> bool:
        root: Node = matcher.match_root
        matched = {root, *matcher.matched_nodes}
        readers = [target for output in root.outputs for target in output.target_inputs]
        behind = {node: (dict(node.attributes), list(node._sources)) for node in _downstream(root)}
        changed = bool(callback(matcher))
        for node, (attributes, sources) in behind.items():
            if not node._attached:
                continue
            moved = len(sources) != len(node._sources) or any(
                old != new and not (old is not None and old.node in matched)
                for old, new in zip(sources, node._sources, strict=False)
            )
            if moved or not _same_attributes(attributes, node.attributes):
                raise PassError(
                    f"pass {matcher_pass.name} at {root} changed {node}, which comes after the root; "
                    "match that node in a pass of its own"
                )
        if root.has_own_name and not root._attached:
            for target in readers:
                _check_name(matcher_pass, root, matched, target.node._sources[target.index])
        return changed

    return watched


def _check_name(matcher_pass: MatcherPass, root: Node, matched: set[Node], source: Output | None) -> None:
    if source is None or source.node is root or source.node.id < root.id:
        return  # an older node took over: an elimination, whose name rule is replace_output_update_name's
    if source.node.friendly_name != root.friendly_name:
        raise PassError(
            f"pass {matcher_pass.name} replaced {root} by {source.node} and lost its friendly name; "
            f"set new.friendly_name = root.friendly_name"
        )


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


def _same_attributes(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return before.keys() == after.keys() and all(before[k] is after[k] or before[k] == after[k] for k in before)


def _check_outputs(item: Pass, before: Model, after: Model) -> None:
    kept = {result.friendly_name: result for result in after.results}
    for result in before.results:
        now = kept.get(result.friendly_name)
        if now is None:
            raise PassError(f"pass {item.name} dropped the network output `{result.friendly_name}`")
        old, new = result.type, now.type
        if type(old) is not type(new) or getattr(old, "element_type", None) is not getattr(new, "element_type", None):
            raise PassError(f"pass {item.name} changed network output `{result.friendly_name}` from {old} to {new}")
        shape = getattr(old, "shape", None)
        if shape is not None and not shape.compatible(getattr(new, "shape")):  # noqa: B009
            raise PassError(f"pass {item.name} changed network output `{result.friendly_name}` from {old} to {new}")


def _check_modified(item: Pass, before: Model, after: Model, changed: bool) -> None:
    differences = compare_models(before, after, types=False)
    if changed and not differences:
        raise PassError(f"pass {item.name} returned True and changed nothing")
    if not changed and differences:
        raise PassError(f"pass {item.name} returned False and changed the model: {'; '.join(differences)}")


def _check_folded(item: Pass, known: set[Node], model: Model) -> None:
    for node in model.ordered_nodes():
        if node not in known and not isinstance(node, Constant) and is_foldable(node):
            raise PassError(
                f"pass {item.name} left the constant subgraph that ends in {node} unfolded; "
                "call constant_fold(node) where it is made"
            )


def _restore(model: Model, backup: Model) -> None:
    model._results, model._parameters, model._sinks = backup._results, backup._parameters, backup._sinks
    model.captures = backup.captures
    model._order = None


def _forget_names(model: Model) -> None:
    for node in model.ordered_nodes():
        for body in node.bodies.values():
            _forget_names(body)
        if node._rt_info:
            node._rt_info.pop(FUSED_NAMES, None)
