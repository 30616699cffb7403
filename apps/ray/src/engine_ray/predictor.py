"""`predictor`: a compiled network, or a model, as a class for `Dataset.map_batches`."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.blob import BlobManifest, check_blob, is_blob
from engine.core import Core
from engine.core.device_name import parse_device
from engine.errors import BlobIncompatibleError, PropertyError
from engine.files import write_file
from engine.ir import Model
from engine.plugin_api import Port
from engine.properties import INFERENCE_NUM_THREADS, IS_REFERENCE, REMOTE_CONTEXT_SUPPORT, Config
from engine_ray.batches import fixed_rows
from engine_ray.job import Job
from engine_ray.nodes import RESOURCES
from engine_ray.progress import Journal
from engine_ray.required import ray_package
from engine_ray.worker import Predictor

_THREADS: Final = INFERENCE_NUM_THREADS.name


def predictor(
    source: Model | str | os.PathLike[str] | bytes,
    device: str | None = None,
    config: Mapping[str, object] | None = None,
    *,
    model: Model | str | os.PathLike[str] | bytes | None = None,
    path: str | os.PathLike[str] | None = None,
    slot: Mapping[str, float] | None = None,
    keep: Sequence[str] = (),
    error_column: str = "",
) -> type[Predictor]:
    """A class for `Dataset.map_batches`, whose workers import one blob; see `Predictor`.

    Args:
        source: a blob, or a model, which is compiled here, once.
        device: by default the blob's, or CPU.
        config: as for `Core.compile_model` and `Core.import_model`.
        model: travels with a blob, and is compiled on the nodes that the blob does not fit. A `source` that is a model
            travels anyway. CACHE_DIR in `config` has it compiled once on each such node, not by each worker.
        path: a file that all nodes can read, from which they map the blob; it is written there, unless it is `source`.
            Otherwise, the blob is in Ray's object store, whose memory all workers of a node share.
        slot: what a worker takes of Ray's resources, `num_cpus` and `num_gpus`. By default, as many CPUs as
            INFERENCE_NUM_THREADS, which is 1 if neither `config` nor the blob sets it; and 1 GPU if the cluster has any
            and the device, or one of its list, has memory of its own, as OPENCL has.
        keep: the columns that results have beside the network's outputs.
        error_column: if given, rows that fail do not end the job: results have this column, with the reason of each
            failed row and an empty string for all others. The outputs of a failed row are NaN, or 0, False or an empty
            string where the type has no NaN.

    Starts Ray if it does not run. Raises `UnsupportedError` if Ray is not installed or the network takes no batches;
    `PropertyError` for a wrong slot, column or configuration; and the errors of reading, compiling and exporting.
    """
    if not isinstance(error_column, str):
        raise PropertyError(f"error_column is {error_column!r:.80}; expected the name of a column, or an empty string")
    if isinstance(keep, str) or not isinstance(keep, Sequence) or not all(isinstance(each, str) for each in keep):
        raise PropertyError(f"keep is {keep!r:.80}; expected a list of names of columns")
    ray = ray_package()
    if model is not None and not isinstance(model, Model):
        model = Core().read_model(model)
    if not isinstance(source, Model) and is_blob(source):
        blob, manifest = source, _manifest(source)
        device = device or manifest.device
        settings = _with_threads(device, manifest.config, config or {})
    else:
        device = device or "CPU"
        settings = _with_threads(device, {}, config or {})
        model = source if isinstance(source, Model) else Core().read_model(source)
        blob = _compiled(model, device, settings)
        manifest = _manifest(blob)
    name = str(manifest.metadata.get("network_name", "network"))
    inputs, outputs = ([Port.from_json(port) for port in ports] for ports in (manifest.inputs, manifest.outputs))
    rows = fixed_rows(name, inputs)
    if doubled := [port.name for port in outputs if port.name in keep]:
        raise PropertyError(f"{name}: column `{doubled[0]}` of keep is also an output of the network; leave it out")
    if error_column in {*keep, *(port.name for port in outputs)}:
        raise PropertyError(
            f"{name}: error_column `{error_column}` is also an output of the network or in keep; choose another name"
        )
    job = Job(
        name=name,
        device=device,
        config=settings,
        blob=None if path is not None else ray.put(np.frombuffer(_bytes_of(blob), np.uint8)),
        path=None if path is None else _stored(blob, path),
        model=None if model is None else ray.put(model),
        keep=tuple(keep),
        error_column=error_column,
        slot=_default_slot(device, settings, ray) if slot is None else _checked_slot(slot),
        journal=_journal(ray),
    )
    return type("Predictor", (Predictor,), {"job": job, "rows": rows, "__doc__": Predictor.__doc__})


def _manifest(blob: str | os.PathLike[str] | bytes) -> BlobManifest:
    """Raises `BlobIncompatibleError` for a blob of another format version, and the errors of reading it."""
    checked = check_blob(blob)
    if checked.manifest is None:
        raise BlobIncompatibleError("; ".join(checked.reasons))
    return checked.manifest


def _with_threads(device: str, exported: Mapping[str, Any], config: Mapping[str, object]) -> dict[str, object]:
    """The configuration with the number of threads of a worker, for a device that has this property.

    Raises `PropertyError` for a configuration that the device does not take, which no worker need find out.
    """
    declared = Core().supported_properties(device)
    settings = dict(Config(declared, config, where=device).explicit)
    if INFERENCE_NUM_THREADS not in declared:
        return settings
    return {**settings, _THREADS: settings.get(_THREADS) or exported.get(_THREADS) or 1}


def _compiled(model: Model, device: str, config: Mapping[str, object]) -> bytes:
    """The blob of a model."""
    network = Core().compile_model(model, device, config)
    stream = io.BytesIO()
    network.export_model(stream)
    return stream.getvalue()


def _bytes_of(blob: str | os.PathLike[str] | bytes) -> bytes:
    return blob if isinstance(blob, bytes) else Path(blob).read_bytes()


def _stored(blob: str | os.PathLike[str] | bytes, path: str | os.PathLike[str]) -> str:
    """The absolute path of the blob, which is written there if it is elsewhere."""
    target = os.path.abspath(path)
    if isinstance(blob, bytes) or not (os.path.exists(target) and os.path.samefile(blob, target)):
        write_file(target, _bytes_of(blob))
    return target


def _default_slot(device: str, config: Mapping[str, object], ray: Any) -> dict[str, float]:
    threads = config.get(_THREADS)
    slot: dict[str, float] = {"num_cpus": threads if isinstance(threads, int) else 1}
    if _may_use_gpu(device) and ray.cluster_resources().get("GPU"):
        slot["num_gpus"] = 1
    return slot


def _may_use_gpu(device: str) -> bool:
    """Whether the device, or one of its list, has memory of its own."""
    core, parsed = Core(), parse_device(device)
    return any(
        core.get_property(each.name, REMOTE_CONTEXT_SUPPORT.name)
        and not core.get_property(each.name, IS_REFERENCE.name)
        for each in parsed.targets or (parsed,)
    )


def _journal(ray: Any) -> Any:
    """The actor on this node, so that no other one that is lost takes what was counted with it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Journal).remote()


def _checked_slot(slot: Mapping[str, float]) -> dict[str, float]:
    for name, amount in slot.items():
        if name not in RESOURCES or not isinstance(amount, (int, float)) or amount < 0:
            raise PropertyError(
                f"slot has {name!r}: {amount!r}; expected amounts of num_cpus and num_gpus, such as {{'num_cpus': 4}}"
            )
    return dict(slot)
