"""The properties that OPENCL adds to those of every device."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property

COMPILE_EFFORT = Property(
    "COMPILE_EFFORT",
    str,
    "none",
    CONFIG,
    "How long compiling may measure which kernels are fastest on the device: not at all, so that the outcome depends "
    "on nothing but the model and the device; quick, seconds; full, all that there is, minutes. Networks with unknown "
    "lengths use what was measured for others.",
    choices=("none", "quick", "full"),
)
INFERENCE_PRECISION_HINT = Property(
    "INFERENCE_PRECISION_HINT",
    str,
    "f32",
    CONFIG,
    "The precision of models of f32: f32 exactly as asked, or f16 for what is stored of weights and of values inside "
    "the model, on any device; inputs, outputs, indices, quantization and what f16 cannot hold stay f32.",
    choices=("f32", "f16"),
)
KERNEL_CHOICES = Property(
    "KERNEL_CHOICES",
    tuple,
    (),
    METRIC,
    "Where there was a choice of kernels: what is computed, what was chosen, and what was measured.",
)
PLAN_CACHE_SIZE = Property(
    "PLAN_CACHE_SIZE",
    int,
    16,
    CONFIG,
    "For how many sets of input shapes a network keeps plans, with their programs and memory.",
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
    "A part of the name of the device to use where DEVICE_ID names none; empty is any.",
)
KERNEL_TRIAL_SECONDS = Property(
    "KERNEL_TRIAL_SECONDS",
    float,
    120.0,
    CONFIG,
    "How long a kernel that was never used on a device may take to be compiled and run once, which happens in a "
    "process of its own, as a driver may end that; 0 compiles in this process at once.",
    minimum=0.0,
    maximum=86400.0,
)
