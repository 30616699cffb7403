"""The properties that ONNXRUNTIME adds to the common ones."""

from __future__ import annotations

from typing import Any

from engine.plugin_api import CONFIG, METRIC, Property

PROVIDER_OPTIONS: Property[dict[str, Any]] = Property(
    "ONNXRUNTIME_PROVIDER_OPTIONS",
    dict,
    {},
    CONFIG,
    'Options of the execution provider, as onnxruntime documents them: {"device_id": "1"}. Some make f32 less exact.',
)
SESSION_OPTIONS: Property[dict[str, Any]] = Property(
    "ONNXRUNTIME_SESSION_OPTIONS",
    dict,
    {},
    CONFIG,
    'Entries of a session\'s configuration, as onnxruntime documents them: {"session.intra_op.allow_spinning": "0"}.',
)
DRIVER_VERSION = Property("DRIVER_VERSION", str, "", METRIC, "The version of the package onnxruntime.")
