"""Compiled forms in blobs: what a provider made of a model (EPContext), otherwise the optimized model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from engine.errors import BlobFormatError
from engine.plugin_api import BlobReader, BlobWriter, Model, UnsupportedError
from engine_onnxruntime.runtime import Session, SessionPlan, load_runtime

_MODEL: Final = "onnxruntime/model"
_WEIGHTS: Final = "onnxruntime/weights"
_SEPARATE_BYTES: Final = 1024


def write_compiled(writer: BlobWriter, graph: Model, plan: SessionPlan) -> None:
    """Write the compiled form of a model as sections; it is compiled once more for this.

    Optimizations that depend on the CPU are left to the import, so that the form runs wherever this version does.
    """
    with tempfile.TemporaryDirectory(prefix="engine-onnxruntime-") as folder:
        optimized, weights, context = (Path(folder) / name for name in ("model.onnx", "weights", "context.onnx"))

        def keep(options: Any) -> None:
            options.graph_optimization_level = load_runtime().GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.optimized_model_filepath = str(optimized)
            initializers = "session.optimized_model_external_initializers"
            entries = {
                f"{initializers}_file_name": weights.name, f"{initializers}_min_size_in_bytes": str(_SEPARATE_BYTES),
                "ep.context_enable": "1", "ep.context_file_path": str(context), "ep.context_embed_mode": "1",
            }  # fmt: skip
            for key, value in entries.items():
                options.add_session_config_entry(key, value)

        plan.open(graph, keep)
        made = context if context.exists() else optimized  # only some providers have contexts
        writer.add_section(_MODEL, made.read_bytes())
        if made is optimized and weights.exists():
            writer.add_section(_WEIGHTS, weights.read_bytes())


def read_compiled(blob: BlobReader, plan: SessionPlan) -> Session | None:
    """A session of the compiled form in a blob that is trusted; None if it has none.

    The runtime reads it as it is, so a forged one could have it read any file. Raises `BlobFormatError` if the runtime
    refuses it.
    """
    if _MODEL not in blob.section_names:
        return None
    weights = blob.section(_WEIGHTS) if _WEIGHTS in blob.section_names else None

    def provide(options: Any) -> None:
        if weights is not None:
            options.add_external_initializers_from_files_in_memory(["weights"], [weights], [len(weights)])

    try:
        handle = plan.load(bytes(blob.section(_MODEL)), provide)
    except UnsupportedError as e:
        raise BlobFormatError(f"{blob.where}: its compiled form cannot be loaded; export it again: {e}") from e
    return Session(handle, *([port.name for port in ports] for ports in (handle.get_inputs(), handle.get_outputs())))
