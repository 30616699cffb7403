"""The configuration of a model in the form of Triton's, from which clients such as perf_analyzer learn its inputs."""

from __future__ import annotations

from typing import Any, Final

from engine_serve.generative_model import GenerativeModel
from engine_serve.model_config import SequenceLimits
from engine_serve.served_model import ServedModel

_TEXTS: Final = "BYTES"
"""The protocol's datatype that Triton's configuration calls TYPE_STRING."""


def triton_config(model: ServedModel) -> dict[str, Any]:
    """The fields of Triton's `ModelConfig` that apply to a model: for JSON, with numbers as numbers.

    `max_batch_size` is above 0 if the device makes batches of any number of rows; the shapes are then without the rows,
    as the extension has them.
    """
    inputs, outputs = model.get_input_types(), model.get_output_types()
    most = _max_batch_size(model)
    found: dict[str, Any] = {
        "name": model.name,
        "platform": "engine",
        "backend": "engine",
        "version_policy": _version_policy(model.config.versions),
        "max_batch_size": most,
        "input": [_tensor(each, is_batched=most > 0) for each in inputs],
        "output": [_tensor(each, is_batched=most > 0) for each in outputs],
        "instance_group": [
            {
                "name": f"{model.name}_0",
                "kind": "KIND_CPU" if model.device == "CPU" else "KIND_MODEL",
                "count": model.slots,
            }
        ],
        "model_transaction_policy": {"decoupled": isinstance(model, GenerativeModel)},
    }
    if model.batch_runs() is not None:
        delay = 0.0 if model.config.batching is None else model.config.batching.delay_ms
        found["dynamic_batching"] = {"max_queue_delay_microseconds": int(delay * 1000)}
    if model.sequences is not None:
        limits = model.config.sequences or SequenceLimits()
        found["sequence_batching"] = {"max_sequence_idle_microseconds": int(limits.idle_ms * 1000)}
    return found


def _max_batch_size(model: ServedModel) -> int:
    """The most rows of a request that a batch is made of; 0 if requests are not batched, or their rows are fixed."""
    if model.batch_runs() is None:
        return 0
    described = [*model.get_input_types(), *model.get_output_types()]
    ports = [*model.network.inputs, *model.network.outputs]
    if any(
        port.shape.rank.is_dynamic or each["shape"][:1] != [-1] for each, port in zip(described, ports, strict=True)
    ):
        return 0
    return model.config.max_rows or int(model.network.get_metric("MAX_BATCH_SIZE"))


def _tensor(described: dict[str, Any], *, is_batched: bool) -> dict[str, Any]:
    datatype = "STRING" if described["datatype"] == _TEXTS else described["datatype"]
    shape = described["shape"][1:] if is_batched else described["shape"]
    return {"name": described["name"], "data_type": f"TYPE_{datatype}", "dims": shape}


def _version_policy(versions: str | tuple[int, ...]) -> dict[str, Any]:
    if isinstance(versions, tuple):
        return {"specific": {"versions": list(versions)}}
    return {"latest": {"num_versions": 1}} if versions == "latest" else {"all": {}}
