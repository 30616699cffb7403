"""OpenVINO's compiled models in blobs, beside the graph, which is compiled where they cannot be used."""

from __future__ import annotations

import io
import json
import logging
from typing import Any, Final

from engine.errors import BlobFormatError
from engine.plugin_api import BlobReader, BlobWriter, Config
from engine_openvino.runtime import Compiled, Runtime, reason, require_threads

_ABOUT: Final = "openvino/about"
_MODEL: Final = "openvino/model"
_log: Final = logging.getLogger("engine_openvino")


def store(writer: BlobWriter, compiled: Compiled, runtime: Runtime, device: str, config: Config) -> None:
    """Write a compiled model, with what it is for."""
    about = {"for": _identity(runtime, device, config), "inputs": compiled.inputs}
    writer.add_section(_ABOUT, json.dumps(about).encode())
    writer.add_section(_MODEL, compiled.network.export_model().getvalue())


def restored(blob: BlobReader, runtime: Runtime, device: str, config: Config) -> Compiled | None:
    """The compiled model of a blob; None if it has none, or one for another version, device or precision.

    OpenVINO reads it without checks, so it is used only if the blob is trusted.
    """
    if _MODEL not in blob.section_names:
        return None
    if not (config["TRUST_BLOB"] or blob.is_trusted):
        _log.info("%s: OpenVINO's compiled model is not used, but compiled again; see TRUST_BLOB", blob.where)
        return None
    try:
        about = json.loads(bytes(blob.section(_ABOUT)))
        made_for, inputs = about["for"], tuple(about["inputs"])
    except (ValueError, KeyError, TypeError) as e:
        raise BlobFormatError(f"{blob.where}: section {_ABOUT} is malformed ({e!r}); export the network again") from e
    if made_for != _identity(runtime, device, config):
        _log.info("%s: the compiled model is for %s; the graph is compiled", blob.where, made_for)
        return None
    settings = runtime.settings(device, config)
    require_threads()
    try:
        return Compiled(runtime.core().import_model(io.BytesIO(blob.section(_MODEL)), device, settings), inputs)
    except RuntimeError as e:  # it is for another instruction set, for example
        _log.info("%s: OpenVINO does not take the compiled model; the graph is compiled: %s", blob.where, reason(e))
        return None


def _identity(runtime: Runtime, device: str, config: Config) -> dict[str, Any]:
    """What a compiled model is for: OpenVINO compares versions itself, but not for each device."""
    return {
        "version": runtime.module.__version__,
        "device": str(runtime.core().get_property(device, "FULL_DEVICE_NAME")),
        "precision": config["INFERENCE_PRECISION_HINT"],
    }
