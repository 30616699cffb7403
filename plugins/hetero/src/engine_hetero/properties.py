"""The properties that HETERO adds to those of every device."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property

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
    is_file=True,
)
CALIBRATION_FILE = Property(
    "CALIBRATION_FILE",
    str,
    "",
    CONFIG,
    "The JSON file in which measured times are kept and found again; empty is a file in CACHE_DIR, and without that "
    "one none: what is measured serves one compilation.",
    is_file=True,
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
PARTITION_STRATEGY = Property(
    "PARTITION_STRATEGY",
    str,
    "potential",
    CONFIG,
    "How subgraphs are formed: `potential` (fewest subgraphs, proven for two devices), `rollback` (OpenVINO's "
    "published algorithm) or `restriction_map` (TVM's proposal).",
    choices=("potential", "rollback", "restriction_map"),
)
PARTITION_MODE = Property(
    "PARTITION_MODE",
    str,
    "auto",
    CONFIG,
    "What `potential` prefers: the fewest subgraphs (`min_subgraphs`), subgraphs that are connected and may run at the "
    "same time (`connected`), or whichever is expected to take less time (`auto`).",
    choices=("auto", "min_subgraphs", "connected"),
)
DEVICE_CONFIGS = Property(
    "DEVICE_PROPERTIES",
    dict,
    {},
    CONFIG,
    'Configuration for single devices of the list: {"CPU": {"COMPILE_EFFORT": "quick"}}.',
)
SUBGRAPH_COUNT = Property(
    "SUBGRAPH_COUNT", int, None, METRIC, "The number of subgraphs that the model was divided into."
)
SUBGRAPH_LOWER_BOUND = Property(
    "SUBGRAPH_LOWER_BOUND",
    int,
    None,
    METRIC,
    "No division of these placements has fewer subgraphs; exact for two devices.",
)
SUBGRAPH_DEVICES = Property(
    "SUBGRAPH_DEVICES", tuple, None, METRIC, "The device of each subgraph, in an order in which they can run."
)
OWN_PROPERTIES = (
    PLACEMENT, AFFINITY_FILE, CALIBRATION_FILE, MEASURE_SECONDS, PARTITION_STRATEGY, PARTITION_MODE, DEVICE_CONFIGS,
)  # fmt: skip
"""The config keys of HETERO alone."""
