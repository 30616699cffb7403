"""Runtime info: annotations that passes copy from removed nodes to their replacements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from engine.errors import PassError
from engine.ir import Model, Node
from engine.ir.walk import all_nodes

FUSED_NAMES = "fused_names"
"""The rt_info key under which a node lists the friendly names of the original nodes that it replaces."""


DECOMPOSED = "decomposed"
"""The rt_info key for the operator and the name of the model's node that this node is a step of."""


class RuntimeAttribute(ABC):
    """A value of rt_info that defines how it is merged and whether it is copied.

    Values of rt_info are shared by the nodes that they are copied to, so treat them as immutable.
    """

    @abstractmethod
    def merge(self, others: Sequence[Any]) -> Any | None:
        """The value for a node that replaces several nodes with this value and `others`; None to drop it."""

    def is_copyable(self, to: Node) -> bool:
        """False if the value must not be copied to `to`."""
        return True


def _merge_names(values: Sequence[Any]) -> Any:
    """The names of all values, each of which has a name once."""
    if len(values) == 2:
        first, second = values
        # Where nodes are merged again and again, one value is long, and seldom has a name of the other.
        short, long = (first, second) if len(first) < len(second) else (second, first)
        if type(first) is type(second) is tuple and set(short).isdisjoint(long):
            return first + second
    return tuple(dict.fromkeys(chain.from_iterable(values)))


ORIGINS = "engine.origins"
"""The rt_info key with which `Manager(checked=True)` traces where annotations go while a pass runs."""

_PLAIN: Final = frozenset({tuple, str, int, float, bool})
"""Types of most values; asking them whether they are of an abstract class takes as long as to create a node."""
_MERGERS: dict[str, Callable[[Sequence[Any]], Any]] = {FUSED_NAMES: _merge_names, ORIGINS: _merge_names}


def copy_runtime_info(sources: Node | Iterable[Node], targets: Node | Iterable[Node]) -> None:
    """Copy rt_info from `sources` to `targets`: 1:1, 1:N, N:1 or N:M.

    The previous rt_info of a target is removed unless the target is among the sources. A key of several sources is
    merged: by `RuntimeAttribute.merge`, as a union for `fused_names`, and otherwise kept if all values are equal and
    dropped if they differ, except that a target among the sources keeps its own value.
    """
    if type(sources) is not list:
        sources = [sources] if isinstance(sources, Node) else list(sources)
    infos = []
    for node in sources:
        if info := node.annotations:
            infos.append(info)  # a comprehension costs a call, and most nodes have no rt_info
    merged = _merge(infos) if infos else {}
    for target in (targets,) if isinstance(targets, Node) else targets:
        if not merged and not (infos and target in sources):
            if target.annotations:
                target.rt_info = {}
        elif len(sources) > 1 and target in sources:
            own = target.annotations
            target.rt_info = merged | {key: value for key, value in own.items() if not _is_mergeable(key, value)}
        else:
            target.rt_info = {
                key: value for key, value in merged.items() if not _is_attribute(value) or value.is_copyable(target)
            }


def copy_to_steps(node: Node, steps: Iterable[Node]) -> None:
    """Copy the rt_info of a node to the steps that replace it, with the model's node that they belong to, which errors
    name.
    """
    steps = list(steps)
    copy_runtime_info(node, steps)
    origin = node.annotations.get(DECOMPOSED, (node.op_type, node.friendly_name))
    for each in steps:
        each.rt_info[DECOMPOSED] = origin


def _is_mergeable(key: str, value: Any) -> bool:
    return key in _MERGERS or _is_attribute(value)


def _is_attribute(value: Any) -> bool:
    return type(value) not in _PLAIN and isinstance(value, RuntimeAttribute)


def _merge(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The merged `infos`, without keys whose values cannot be merged."""
    if len(infos) <= 1:
        return dict(infos[0]) if infos else {}
    gathered: dict[str, list[Any]] = {}
    for info in infos:
        for key, value in info.items():
            if key in gathered:
                gathered[key].append(value)
            else:
                gathered[key] = [value]
    merged = {}
    for key, values in gathered.items():
        value = values[0] if len(values) == 1 else _merge_values(key, values)
        if value is not _CONFLICT:
            merged[key] = value
    return merged


def _merge_values(key: str, values: list[Any]) -> Any:
    first = values[0]
    if _is_attribute(first):
        value = first.merge(values[1:])
        return _CONFLICT if value is None else value
    merger = _MERGERS.get(key)
    if merger is not None:
        return merger(values)
    return first if all(_equal(value, first) for value in values[1:]) else _CONFLICT


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


_CONFLICT = object()


def init_node_info(model: Model) -> bool:
    """Set `fused_names` of every operation without it to its own name; True if any was set."""
    changed = False
    for node in all_nodes(model):
        if is_operation(node) and FUSED_NAMES not in node.annotations:
            node.rt_info[FUSED_NAMES] = (node.friendly_name,)
            changed = True
    return changed


def is_operation(node: Node) -> bool:
    """True for all nodes but parameters, constants and results, which need not carry rt_info."""
    return node.op_type not in _LEAVES or bool(node.domain)


_LEAVES = frozenset({"Parameter", "Constant", "Result"})


def check_rt_info(model: Model) -> None:
    """Raise `PassError` naming every operation, bodies included, whose `fused_names` was lost since `InitNodeInfo`."""
    check_carried(model, FUSED_NAMES)


def check_carried(model: Model, key: str) -> None:
    """Raise `PassError` naming every operation, bodies included, that has no `key` in its rt_info."""
    lost = [str(node) for node in all_nodes(model) if is_operation(node) and not node.annotations.get(key)]
    if lost:
        raise PassError(
            f"{len(lost)} nodes lost their rt_info: {', '.join(lost[:10])}{', ...' if len(lost) > 10 else ''}; "
            "call copy_runtime_info(replaced_nodes, new_nodes) where nodes are created"
        )
