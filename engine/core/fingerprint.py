"""The hash of everything that a compilation depends on: the key of a cached network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Final

from engine.core.code import CodeReader, library_versions
from engine.core.compatibility import host_features
from engine.errors import EngineError, NativeCoreError
from engine.files.digest import sha256
from engine.ir import Constant, Model, Node
from engine.native import cores
from engine.plugin_api import API_VERSION, Config, Plugin, engine_version
from engine.properties import ALLOW_SHARED_CACHE, CACHE_DIR, DEVICE_ID, ENABLE_MMAP, FULL_DEVICE_NAME, MAX_TENSOR_BYTES

_WITHOUT_EFFECT: Final = frozenset({
    CACHE_DIR.name, ALLOW_SHARED_CACHE.name, ENABLE_MMAP.name, DEVICE_ID.name, MAX_TENSOR_BYTES.name,
})  # fmt: skip
"""Config keys that do not affect the network; the device is resolved separately."""
_PASSES_ONLY: Final = "ENGINE_PASSES_ONLY"
_PASSES_WITHOUT: Final = "ENGINE_PASSES_WITHOUT"
"""Which passes run, see `engine.passes.regions`."""
_DEBUGGING: Final = (
    _PASSES_ONLY, _PASSES_WITHOUT, "ENGINE_PASSES_RECORD", "ENGINE_PROFILE_PASS_ENABLE",
    "ENGINE_ENABLE_VISUALIZE_TRACING",
)  # fmt: skip
"""Whoever sets one of these wants to see a compilation."""


def cache_key(model: Model, identity: dict[str, Any]) -> str:
    """SHA-256, in hex, of a model with all its weights and of an identity from `plugin_identity`.

    Linear in the weights' bytes, at 2 to 3 GB/s. Generated names of unnamed nodes are ignored, and so are entries of
    `rt_info` that a blob cannot hold. Raises `ModelError` if the model cannot be written as ONNX.
    """
    from engine.onnx import split_model
    from engine.ops.packed_columns import PackedColumns
    from engine.ops.tensors import tensor_to_raw  # which imports onnx

    packed: list[Constant] = []

    def is_packed(constant: Constant) -> bool:
        """Whether its bytes are those of another one in a different order: unpacking takes longer than hashing."""
        if not isinstance(constant.derivation, PackedColumns):
            return False
        packed.append(constant)
        return True

    skeleton, weights = split_model(_with_stable_names(model), is_packed)
    digest = sha256()
    _add(digest, json.dumps(identity, sort_keys=True).encode())
    _add(digest, skeleton)
    for name, _, data in weights:
        _add(digest, name.encode())
        _add(digest, data)
    for constant in packed:  # in the order of the skeleton
        (stored,) = constant.bases
        _add(digest, f"{constant.derivation} {stored.element_type} {stored.shape}".encode())
        _add(digest, tensor_to_raw(stored.data))
        stored.release()
    return digest.hexdigest()


def plugin_identity(plugin: Plugin, config: Config, targets: list[dict[str, Any]], code: CodeReader) -> dict[str, Any]:
    """Everything but the model that a compilation depends on, as JSON values.

    `targets` are the identities of the devices that the plugin runs on. Raises `PluginError`.
    """
    device_id = plugin.device_id_of(config)
    values = Config(plugin.declared, dict(config)).to_json()
    features = host_features(plugin, device_id).items() if device_id else ()
    return {
        "engine": engine_version(),
        "api": API_VERSION,
        "plugin": [plugin.name, plugin.version],
        "code": code.digest(plugin),
        "libraries": library_versions(),
        "cores": _cores(),
        "device": [device_id, _full_name(plugin, device_id)],
        "features": {kind: [value] if isinstance(value, str) else sorted(value) for kind, value in features},
        "config": {name: value for name, value in values.items() if name not in _WITHOUT_EFFECT},
        "files": {p.name: _content(config[p.name]) for p in plugin.declared if p.is_file and config[p.name]},
        "passes": [_content(os.environ.get(_PASSES_ONLY, "")), os.environ.get(_PASSES_WITHOUT, "")],
        "targets": targets,
    }


def has_effects(plugin: Plugin, config: Config) -> bool:
    """Whether a compilation does more than make a network, such as drawing the model, so that a user waits for it."""
    stated = {name for name in plugin.compile_effects if config[name] != plugin.declared[name].default}
    return bool(stated) or any(os.environ.get(each) for each in _DEBUGGING)


def _cores() -> int:
    """The cores that this process may use: kernels are chosen for as many threads."""
    try:
        return cores()
    except NativeCoreError:  # devices that compute without it do not have to be told
        return os.cpu_count() or 1


def _content(path: str) -> str:
    """The hash of a file's content; if the file cannot be read, compiling reports that."""
    try:
        with open(path, "rb") as file:
            return sha256(file.read()).hexdigest()
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte
        return type(e).__name__


def _with_stable_names(model: Model) -> Model:
    """`model`, or a copy in which unnamed nodes are named by position: generated names differ between processes."""
    if all(node.has_own_name for node in _all_nodes(model)):
        return model
    copy = model.clone()
    for position, node in enumerate(_all_nodes(copy)):
        if not node.has_own_name:
            node.friendly_name = f"{node.op_type}_{position}"
    return copy


def _all_nodes(model: Model) -> Iterator[Node]:
    for node in model.ordered_nodes():
        yield node
        for body in node.bodies.values():
            yield from _all_nodes(body)


def _full_name(plugin: Plugin, device_id: str) -> str:
    try:
        return str(plugin.get_metric(FULL_DEVICE_NAME.name, device_id))
    except EngineError:  # the metric is optional
        return ""


def _add(digest: Any, part: Any) -> None:
    """Hash the length of `part`, then `part`, so that different lists of parts never hash the same bytes."""
    view = memoryview(part).cast("B")
    digest.update(len(view).to_bytes(8, "little"))
    digest.update(view)
