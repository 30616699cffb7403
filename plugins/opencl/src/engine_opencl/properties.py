"""The properties that OPENCL adds to those of every device."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property

PLAN_CACHE_SIZE = Property(
    "PLAN_CACHE_SIZE",
    int,
    16,
    CONFIG,
    "For how many sets of input shapes a network keeps plans.",
    minimum=1,
    maximum=4096,
)
DRIVER_VERSION = Property("DRIVER_VERSION", str, None, METRIC, "The OpenCL platform and the version of its driver.")
DEVICE_MEMORY = Property("DEVICE_MEMORY", int, None, METRIC, "The device's memory, in bytes.")
