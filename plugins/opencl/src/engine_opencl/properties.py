"""The properties that OPENCL adds to the common ones."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property
from engine.properties import TARGET as COMMON_TARGET

COMPILE_EFFORT = Property(
    "COMPILE_EFFORT",
    str,
    "none",
    CONFIG,
    "How long compilation may measure kernels to find the fastest: none, so that the result depends only on the model "
    "and the device; quick, seconds; full, every candidate, minutes. Networks with dynamic shapes use times measured "
    "for other networks.",
    choices=("none", "quick", "full"),
)
EXECUTION_MODE_HINT = Property(
    "EXECUTION_MODE_HINT",
    str,
    "PERFORMANCE",
    CONFIG,
    "PERFORMANCE; or ACCURACY: convolutions sum products directly, never by Winograd's algorithm, products of f16 are "
    "summed in f32, never in f16, and INFERENCE_PRECISION_HINT=f16 is an error. Quantization that is part of the model "
    "is computed as it says in both modes.",
    choices=("PERFORMANCE", "ACCURACY"),
)
INFERENCE_PRECISION_HINT = Property(
    "INFERENCE_PRECISION_HINT",
    str,
    "f32",
    CONFIG,
    "The precision of f32 models: f32 throughout, or f16 for stored weights and intermediate values, on any device; "
    "inputs, outputs, indices, quantization and values beyond the range of f16 stay f32.",
    choices=("f32", "f16"),
)
KERNEL_CHOICES = Property(
    "KERNEL_CHOICES",
    tuple,
    (),
    METRIC,
    "For each operation with several kernels: the problem, the chosen kernel and the measured times.",
)
PLAN_CACHE_SIZE = Property(
    "PLAN_CACHE_SIZE",
    int,
    16,
    CONFIG,
    "For how many sets of input shapes, and of values of inputs such as axes and sizes, a network caches plans, with "
    "their programs and memory.",
    minimum=1,
    maximum=4096,
)
DRIVER_VERSION = Property("DRIVER_VERSION", str, None, METRIC, "The OpenCL platform and the version of its driver.")
DEVICE_MEMORY = Property("DEVICE_MEMORY", int, None, METRIC, "The device's memory, in bytes.")
DEVICE_NAME = Property(
    "DEVICE_NAME",
    str,
    "",
    CONFIG,
    "A part of the name of the device to use if DEVICE_ID is empty; empty matches any device.",
)
TARGET = Property(
    COMMON_TARGET.name,
    str,
    "",
    CONFIG,
    "The device that a network is compiled for, as the metric OWN_TARGET describes it on the machine that has it; this "
    "machine needs no OpenCL runtime. The network can be exported, and refuses requests. Empty: a device of this "
    "machine.",
    is_local=True,
)
TRUST_BLOB = Property(
    "TRUST_BLOB",
    bool,
    False,
    CONFIG,
    "Whether the compiled programs of an imported blob are used. They are code, which computes what its author wants: "
    "set this only for blobs written by you or by people you trust. Otherwise, unless a key of TRUSTED_KEYS "
    "has signed the blob, programs are compiled from sources that the engine generates. The programs of a blob are "
    "never kept for other networks.",
    is_local=True,
)
KERNEL_TRIAL_SECONDS = Property(
    "KERNEL_TRIAL_SECONDS",
    float,
    120.0,
    CONFIG,
    "How many seconds a kernel that is new to a device may take to compile and run once; this happens in a child "
    "process, since drivers may crash; 0 compiles in this process.",
    minimum=0.0,
    maximum=86400.0,
    is_local=True,
)
