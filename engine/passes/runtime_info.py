"""Runtime info: annotations that passes carry from the nodes they remove to the nodes they make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from engine.errors import PassError
from engine.ir import Model, Node

FUSED_NAMES = "fused_names"
"""The rt_info key under which a node lists the friendly names of the original nodes that it stands for."""


class RuntimeAttribute(ABC):
    """A value of rt_info that says itself how it is merged and whether it is copied."""

    @abstractmethod
    def merge(self, others: Sequence[Any]) -> Any | None:
        """The value for a node that replaces several that carry this and `others`; None to drop it."""

    def is_copyable(self, to: Node) -> bool:
        """False where the value must not travel to `to`."""
        return True


def _merge_names(values: Sequence[Any]) -> Any:
    return tuple(dict.fromkeys(name for names in values for name in names))


_MERGERS: dict[str, Callable[[Sequence[Any]], Any]] = {FUSED_NAMES: _merge_names}


def copy_runtime_info(sources: Node | Iterable[Node], targets: Node | Iterable[Node]) -> None:
    """Carry rt_info from `sources` to `targets`: 1:1, 1:N, N:1 or N:M.

    What a target had is removed; list it among the sources to keep it. A key that several sources carry is merged:
    by `RuntimeAttribute.merge`, as a union for `fused_names`, and otherwise kept where all values are equal and
    dropped where they differ.
    """
    sources = (sources,) if isinstance(sources, Node) else sources
    targets = (targets,) if isinstance(targets, Node) else targets
    merged = _merge([node._rt_info for node in sources if node._rt_info])
    for target in targets:
        if not merged:
            target._rt_info = None
            continue
        target._rt_info = {
            key: value
            for key, value in merged.items()
            if not isinstance(value, RuntimeAttribute) or value.is_copyable(target)
        }


def _merge(infos: list[dict[str, Any]]) -> dict[str, Any]:
    if not infos:
        return {}
    if len(infos) == 1:
        return dict(infos[0])
    gathered: dict[str, list[Any]] = {}
    for info in infos:
        for key, value in info.items():
            gathered.setdefault(key, []).append(value)
    merged: dict[str, Any] = {}
    for key, values in gathered.items():
        value = _merge_values(key, values)
        if value is not None:
            merged[key] = value
    return merged


def _merge_values(key: str, values: list[Any]) -> Any | None:
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, RuntimeAttribute):
        return first.merge(values[1:])
    merger = _MERGERS.get(key)
    if merger is not None:
        return merger(values)
    return first if all(value == first for value in values[1:]) else None


def init_node_info(model: Model) -> None:
    """Give every operation its own name as `fused_names`, unless it has some already."""
    for node in model.ordered_nodes():
        for body in node.bodies.values():
            init_node_info(body)
        if node.op_type not in _UNNAMED:
            node.rt_info.setdefault(FUSED_NAMES, (node.friendly_name,))


_UNNAMED = frozenset({"Parameter", "Constant", "Result"})


def check_rt_info(model: Model) -> None:
    """Raise `PassError` naming every operation whose `fused_names` was lost since `init_node_info`."""
    lost = [
        str(node)
        for node in model.ordered_nodes()
        if node.op_type not in _UNNAMED and not (node._rt_info or {}).get(FUSED_NAMES)
    ]
    if lost:
        raise PassError(
            f"{len(lost)} nodes carry no `{FUSED_NAMES}`: {', '.join(lost[:10])}; "
            "a pass made them without copy_runtime_info(replaced_nodes, new_nodes)"
        )
