"""Annotations of nodes, `rt_info` and names, in the metadata of protos."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from engine.errors import ModelReadError
from engine.ir import Node
from engine.onnx.functions import OPSET_TAG
from engine.startup.onnx_library import onnx

RT_INFO: Final = "engine.rt_info"
"""Metadata key under which a skeleton stores the whole rt_info as JSON."""
NAME: Final = "engine.name"
"""Metadata key under which a skeleton stores a friendly name that differs from the proto's name."""
SINK: Final = "engine.sink"
"""Metadata key of a sink with outputs: a node that is kept for its side effect."""

ACCURACY_LEVEL: Final = "accuracy_level"
"""Key of a product, in rt_info and metadata: the type to which a device may round its left operand, as 0..4."""

_N = TypeVar("_N", bound=Node)


def annotated(node: _N, proto: Any) -> _N:
    """`node`, with the metadata of `proto` added to its rt_info. Raises `ModelReadError`."""
    metadata: dict[str, str] = {}
    for entry in proto.metadata_props:
        if entry.key == "affinity":
            node.rt_info["affinity"] = entry.value
        elif entry.key == ACCURACY_LEVEL and entry.value in ("1", "2", "3", "4"):
            node.rt_info[ACCURACY_LEVEL] = int(entry.value)
        elif entry.key == RT_INFO:
            node.rt_info.update(parse_rt_info(entry.value))
        elif entry.key == NAME:
            node.friendly_name = entry.value
        elif entry.key not in (OPSET_TAG, SINK):
            metadata[entry.key] = entry.value
    if metadata:
        node.rt_info["metadata"] = metadata
    if proto.doc_string:
        node.rt_info["doc_string"] = proto.doc_string
    return node


def is_sink(proto: onnx.NodeProto) -> bool:
    """Whether the node is kept for its side effect: it has no outputs, or its metadata has the key `SINK`."""
    return not proto.output or any(entry.key == SINK for entry in proto.metadata_props)


def annotate(proto: Any, node: Node) -> None:
    """Write the portable part of the node's rt_info into the metadata of `proto`."""
    info = node.annotations
    if not info:
        return
    if "affinity" in info:
        proto.metadata_props.add(key="affinity", value=str(info["affinity"]))
    if ACCURACY_LEVEL in info:
        proto.metadata_props.add(key=ACCURACY_LEVEL, value=str(info[ACCURACY_LEVEL]))
    for key, value in (info.get("metadata") or {}).items():
        proto.metadata_props.add(key=str(key), value=str(value))
    if info.get("doc_string"):
        proto.doc_string = str(info["doc_string"])


def annotate_exactly(proto: Any, node: Node, name: str) -> None:
    """Write the JSON-like part of the node's rt_info, and its friendly name if it is not `name`, for `annotated`."""
    if node.has_own_name and node.friendly_name != name:
        proto.metadata_props.add(key=NAME, value=node.friendly_name)
    if node.annotations:
        text = rt_info_text(node.annotations)
        if text != "{}":
            proto.metadata_props.add(key=RT_INFO, value=text)


def rt_info_text(info: Mapping[str, Any]) -> str:
    """The JSON-like part of `info`, as JSON."""
    return json.dumps({key: value for key, value in info.items() if isinstance(key, str) and _is_json(value)})


def parse_rt_info(text: str) -> dict[str, Any]:
    """The annotations that `rt_info_text` wrote. Raises `ModelReadError`."""
    try:
        info = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ModelReadError(f"metadata `{RT_INFO}` is not valid JSON: {e}") from e
    if not isinstance(info, dict):
        raise ModelReadError(f"metadata `{RT_INFO}` is a {type(info).__name__}; expected an object")
    return info


def _is_json(value: Any) -> bool:
    if value is None or isinstance(value, (str, bool, int, float)):
        return True
    if isinstance(value, (list, tuple)):
        return all(map(_is_json, value))
    return isinstance(value, dict) and all(isinstance(k, str) and _is_json(v) for k, v in value.items())
