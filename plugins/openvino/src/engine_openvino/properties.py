"""The properties that OPENVINO adds to the common ones."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property

INFERENCE_PRECISION_HINT = Property(
    "INFERENCE_PRECISION_HINT",
    str,
    "f32",
    CONFIG,
    "The precision in which OpenVINO may compute f32 models: f32 throughout, unless another is asked for. With f32, it "
    "neither rounds activations to 8 bits, nor keeps keys and values of past tokens in fewer bits.",
    choices=("f32", "bf16", "f16"),
)
ALLOW_NARROW_TYPES = Property(
    "ALLOW_NARROW_TYPES",
    bool,
    False,
    CONFIG,
    "Whether f64 may be computed in f32, integers in f32 or in 32 bits, and whether sums of 8-bit integers may "
    "saturate, as OpenVINO does; otherwise, operations that this may change are refused, and integers beyond 32 bits "
    "in inputs are an error.",
)
EXPORT_COMPILED = Property(
    "EXPORT_COMPILED",
    bool,
    False,
    CONFIG,
    "Whether a blob also has OpenVINO's compiled model, with weights of its own. A trusted blob is then imported "
    "faster where version, device and precision are the same.",
)
TRUST_BLOB = Property(
    "TRUST_BLOB",
    bool,
    False,
    CONFIG,
    "Whether the compiled model of an imported blob is used, which OpenVINO reads without checks: set this only for "
    "blobs written by you or by people you trust. A blob that a key of TRUSTED_KEYS has signed is trusted anyway.",
    is_local=True,
)
OPENVINO_VERSION = Property("OPENVINO_VERSION", str, None, METRIC, "The version of the package openvino.")
