"""Compiled forms in blobs: what a provider made of a model (EPContext), otherwise the optimized model."""

from __future__ import annotations

import tempfile
from contextlib import suppress
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

    Optimizations that depend on the CPU are left to the import, so that the form runs wherever this version does. A
    provider that compiles but has no contexts leaves nothing to write. Raises `UnsupportedError` if it cannot load the
    contexts that it has written.
    """
    with tempfile.TemporaryDirectory(prefix="engine-onnxruntime-") as folder:
        form, weights = Path(folder) / "model.onnx", Path(folder) / "weights"

        def keep_context(options: Any) -> None:
            entries = {"ep.context_enable": "1", "ep.context_file_path": str(form), "ep.context_embed_mode": "1"}
            for key, value in entries.items():
                options.add_session_config_entry(key, value)

        def keep_optimized(options: Any) -> None:
            options.graph_optimization_level = load_runtime().GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.optimized_model_filepath = str(form)
            for key, value in (("file_name", weights.name), ("min_size_in_bytes", str(_SEPARATE_BYTES))):
                options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)

        for keep in (keep_context, keep_optimized):
            with suppress(UnsupportedError):  # nodes that a provider compiled are part of contexts alone
                plan.open(graph, keep)
            if form.exists():
                if keep is keep_context:
                    plan.load(str(form))  # not every provider reads what it has written
                writer.add_section(_MODEL, form.read_bytes())
                if weights.exists():
                    writer.add_section(_WEIGHTS, weights.read_bytes())
                return


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
