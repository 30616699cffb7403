"""The properties that ONNXRUNTIME adds to the common ones."""

from __future__ import annotations

from typing import Any

from engine.plugin_api import CONFIG, METRIC, Property

PRECISION = Property(
    "INFERENCE_PRECISION_HINT",
    str,
    "f32",
    CONFIG,
    "The precision of f32 models: f32 throughout, or tf32 for products on the tensor cores of CUDA.",
    choices=("f32", "tf32"),
)
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
EXPORT_COMPILED = Property(
    "ONNXRUNTIME_EXPORT_COMPILED",
    bool,
    False,
    CONFIG,
    "Whether a blob also has the model as onnxruntime compiled it, so that an import need not compile: the contexts of "
    "the execution provider if it has any, otherwise the optimized model. The export compiles once more, and the blob "
    "has the weights twice.",
)
TRUST_BLOB = Property(
    "TRUST_BLOB",
    bool,
    False,
    CONFIG,
    "Whether the compiled form in an imported blob is used. onnxruntime reads it as it is, and it may be code: set "
    "this only for blobs written by you or by people you trust. Otherwise, unless a key of TRUSTED_KEYS has signed the "
    "blob, its model is compiled again.",
    is_local=True,
)
DRIVER_VERSION = Property("DRIVER_VERSION", str, "", METRIC, "The version of the package onnxruntime.")
