"""Users' choices of devices for nodes: with `set_affinity`, in the ONNX file, or in a separate JSON file."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from engine.errors import ModelError, PropertyError, UnsupportedError
from engine.ir import Node
from engine.ir.walk import all_nodes
from engine.ops import traits_of
from engine.passes.runtime_info import FUSED_NAMES, is_operation
from engine.plugin_api import Model
from engine_hetero.affinity.placement import UNPLACED
from engine_hetero.query.model_graph import Ints, ModelGraph

logger = logging.getLogger("engine.hetero")

AFFINITY: Final = "affinity"
"""The key of the device string in rt_info, and in a node's metadata in an ONNX file."""

Affinities: TypeAlias = "Mapping[str, str] | Callable[[Node], str | None]"

_MAX_LISTED: Final = 20


def set_affinity(model: Model, affinity: Affinities) -> None:
    """Choose the devices of nodes of `model`, before it is compiled for HETERO.

    Args:
        affinity: device strings by friendly name, or a function that returns one for a node, or None. Other nodes keep
            their affinity. Nodes in the bodies of If, Loop and Scan are included; they run on the device of the node
            that contains them.

    Raises `ModelError` for an unknown name and for an invalid device string; the model is then unchanged.
    """
    operations = [node for node in all_nodes(model) if is_operation(node)]
    if isinstance(affinity, Mapping):
        _require_known(affinity, {node.friendly_name for node in operations}, f"model `{model.name}`")
        stated = [(node, affinity.get(node.friendly_name)) for node in operations]
    else:
        stated = [(node, affinity(node)) for node in operations]
    for node, device in stated:
        if device is not None and not _is_device_string(device):
            raise ModelError(f"the affinity of {node} is {device!r:.60}; expected a device string such as 'CPU'")
    for node, device in stated:
        if device is not None:
            node.rt_info[AFFINITY] = device


def stated_affinity(
    graph: ModelGraph, devices: Sequence[str], file: str = "", *, user_model: Model | None = None
) -> Ints:
    """(N,) for each node, the index of the device chosen by users, or `UNPLACED`.

    A node of the graph may replace several of the user's nodes (`fused_names`), and includes those in its bodies; their
    affinities must agree. Nodes that only moved data, such as an Identity, and were merged into another operator, count
    only if no other node has an affinity. Device strings are compared literally: "CPU" is not "CPU.0".

    Args:
        devices: the device strings that may be named.
        file: a JSON file of device strings by node name, which overrides `rt_info`; names of nodes that were folded or
            are cloned into every part have no effect.
        user_model: the user's model, if the graph is of another one: the file uses its names.

    Raises `UnsupportedError` naming node and device for a device that is not listed, and for conflicting affinities;
    `PropertyError` for a file that cannot be read, is not valid, or names an unknown node.
    """
    model = graph.model if user_model is None else user_model
    stated = _in_model(model)
    if file:
        stated |= _in_file(file, model, graph)
    for name, device in stated.items():
        _require_listed(name, device, devices)
    moving = {node.friendly_name: node.op_type for node in all_nodes(model) if _only_moves(node)}
    affinity = np.full(len(graph.nodes), UNPLACED, np.int64)
    used: set[str] = set()
    for number, node in enumerate(graph.nodes):
        said = {name: stated[name] for name in _names(node) if name in stated}
        used.update(said)  # (`|=` with keys would copy the set)
        said = {name: d for name, d in said.items() if moving.get(name, node.op_type) == node.op_type} or said
        if not said and (own := node.annotations.get(AFFINITY)) is not None:
            said = {node.friendly_name: _checked_text(node, own)}
            _require_listed(node.friendly_name, said[node.friendly_name], devices)
        if said:
            affinity[number] = _agreed(node, said, devices)
    if unused := sorted(stated.keys() - used):
        shown = ", ".join(unused[:_MAX_LISTED]) + (", ..." if len(unused) > _MAX_LISTED else "")
        logger.info(
            "the affinity of %d nodes has no effect, because these nodes are not executed: %s", len(unused), shown
        )
    return affinity


def _only_moves(node: Node) -> bool:
    """Whether a node computes nothing: if it is eliminated, its name is passed to a neighbour."""
    return traits_of(node).moves is not None or node.op_type in ("Dropout", "Cast", "CastLike")


def _in_model(model: Model) -> dict[str, str]:
    """The affinities in rt_info, by friendly name, without names shared by nodes with different affinities."""
    found: dict[str, str] = {}
    shared: set[str] = set()
    for node in all_nodes(model):
        device = node.annotations.get(AFFINITY) if is_operation(node) else None
        if device is not None and found.setdefault(node.friendly_name, _checked_text(node, device)) != device:
            shared.add(node.friendly_name)
    return {name: device for name, device in found.items() if name not in shared}


def _in_file(path: str, model: Model, graph: ModelGraph) -> dict[str, str]:
    where = f"AFFINITY_FILE {path}"
    try:
        read = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_Pairs)
    except OSError as e:
        raise PropertyError(f"{where} cannot be read: {e.strerror or e}") from e
    except (ValueError, RecursionError) as e:
        raise PropertyError(f"{where} is not JSON: {e}") from e
    if not isinstance(read, _Pairs):
        raise PropertyError(
            f'{where} holds {read!r:.60}; expected an object that maps node names to devices: {{"conv": "CPU"}}'
        )
    stated: dict[str, str] = {}
    for name, device in read:
        if not _is_device_string(device):
            raise PropertyError(f"{where}: node `{name}` has {device!r:.60}; expected a device string such as 'CPU'")
        if stated.setdefault(name, device) != device:
            raise PropertyError(f"{where}: node `{name}` is listed twice, with {stated[name]!r} and {device!r}")
    known = {node.friendly_name for node in all_nodes(model)}
    known |= {name for node in graph.nodes for name in _names(node)}
    try:
        _require_known(stated, known, f"model `{model.name}`")
    except ModelError as e:
        raise PropertyError(f"{where}: {e}") from None
    return stated


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, repeated ones included."""


def _names(node: Node) -> Iterator[str]:
    """The names of the user's nodes that run as part of `node`."""
    yield from node.annotations.get(FUSED_NAMES, (node.friendly_name,))
    for body in node.bodies.values():
        for inner in all_nodes(body):
            if is_operation(inner):
                yield from inner.annotations.get(FUSED_NAMES, (inner.friendly_name,))


def _agreed(node: Node, said: Mapping[str, str], devices: Sequence[str]) -> int:
    if len(set(said.values())) > 1:
        listed = ", ".join(f"`{name}` on {device}" for name, device in list(said.items())[:_MAX_LISTED])
        raise UnsupportedError(
            f"{node} combines {len(said)} nodes with different affinities: {listed}; they run as one node, so give "
            f"them the same device, or give only one of them an affinity"
        )
    return devices.index(next(iter(said.values())))


def _require_listed(name: str, device: str, devices: Sequence[str]) -> None:
    if device in devices:
        return
    close = difflib.get_close_matches(device, devices, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UnsupportedError(
        f"the affinity of node `{name}` is {device!r}, which is not in the device list {', '.join(devices)}{hint} "
        f"(names must be equal; add the device to the list, or change the affinity)"
    )


def _checked_text(node: Node, device: object) -> str:
    if not _is_device_string(device):
        raise ModelError(f"the rt_info affinity of {node} is {device!r:.60}; expected a device string")
    return str(device)


def _is_device_string(device: object) -> bool:
    return isinstance(device, str) and bool(device) and device == device.strip()


def _require_known(names: Iterable[str], known: set[str], where: str) -> None:
    unknown = [name for name in names if name not in known]
    if not unknown:
        return
    close = difflib.get_close_matches(str(unknown[0]), known, n=1)
    hint = f"; did you mean `{close[0]}`?" if close else ""
    more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    raise ModelError(f"{where} has no node `{unknown[0]}`{more}{hint}")
