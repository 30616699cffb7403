"""The properties that HETERO adds to those of every device."""

from __future__ import annotations

from engine.plugin_api import CONFIG, Property

PLACEMENT = Property(
    "PLACEMENT",
    str,
    "priority",
    CONFIG,
    "How nodes that no affinity places get a device: the first in the list that runs them, or the cheapest by measured "
    "times and transfers.",
    choices=("priority", "measured"),
)
AFFINITY_FILE = Property(
    "AFFINITY_FILE",
    str,
    "",
    CONFIG,
    'A JSON file of devices by node name, {"conv1": "CPU"}; it may be partial, and goes before the affinity that the '
    "model states.",
)
CALIBRATION_FILE = Property(
    "CALIBRATION_FILE",
    str,
    "",
    CONFIG,
    "The JSON file in which measured times are kept and found again; empty is a file in CACHE_DIR, and without that "
    "one none: what is measured serves one compilation.",
)
MEASURE_SECONDS = Property(
    "MEASURE_SECONDS",
    float,
    10.0,
    CONFIG,
    "How many seconds one compilation may measure nodes for, all devices together; 0 uses only what the calibration "
    "file has, and default rates for the rest.",
    minimum=0.0,
    maximum=86400.0,
)
