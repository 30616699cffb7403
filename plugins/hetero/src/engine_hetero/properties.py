"""The properties that HETERO adds to the common ones."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property
from engine.properties import DEVICE_CONFIGS, TARGET

PLACEMENT = Property(
    "PLACEMENT",
    str,
    "priority",
    CONFIG,
    "How nodes without an affinity are placed: on the first device of the list that supports them, or on the cheapest "
    "by measured times and transfers.",
    choices=("priority", "measured"),
)
AFFINITY_FILE = Property(
    "AFFINITY_FILE",
    str,
    "",
    CONFIG,
    'A JSON file that maps node names to devices, {"conv1": "CPU"}; nodes may be omitted; it overrides the affinity '
    "in the model.",
    is_file=True,
)
CALIBRATION_FILE = Property(
    "CALIBRATION_FILE",
    str,
    "",
    CONFIG,
    "The JSON file in which measured times are cached; if empty, a file in CACHE_DIR; without CACHE_DIR, none, and "
    "times are measured for each compilation.",
    is_file=True,
)
MEASURE_SECONDS = Property(
    "MEASURE_SECONDS",
    float,
    10.0,
    CONFIG,
    "How many seconds one compilation may spend on measuring nodes, over all devices; 0 uses only the times in the "
    "calibration file, and default rates for other nodes.",
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
    "What `potential` minimizes: the number of subgraphs (`min_subgraphs`), the same with subgraphs that are connected "
    "and may run concurrently (`connected`), or the expected time of these two (`auto`).",
    choices=("auto", "min_subgraphs", "connected"),
)
DUMP_GRAPH = Property(
    "HETERO_DUMP_GRAPH",
    str,
    "",
    CONFIG,
    "Where compiling draws the model, each operation with its device and subgraph: a file whose name ends with .dot, "
    ".svg or .html, or a folder, for a .dot file with the model's name. No file is replaced: later ones are numbered. "
    "A network from CACHE_DIR is not drawn.",
    is_local=True,
)
SUBGRAPH_COUNT = Property("SUBGRAPH_COUNT", int, None, METRIC, "The number of subgraphs of the model.")
SUBGRAPH_LOWER_BOUND = Property(
    "SUBGRAPH_LOWER_BOUND",
    int,
    None,
    METRIC,
    "A lower bound on the number of subgraphs for this placement; exact for two devices.",
)
SUBGRAPH_DEVICES = Property(
    "SUBGRAPH_DEVICES", tuple, None, METRIC, "The device of each subgraph, in an order of execution."
)
HOST_TRANSFERS = Property(
    "HOST_TRANSFERS",
    dict,
    {},
    METRIC,
    "For each device whose subgraphs pass tensors to each other in its memory, the bytes that all inferences so far "
    "have copied from the host to the device and back.",
)
OWN_PROPERTIES = (
    PLACEMENT, AFFINITY_FILE, CALIBRATION_FILE, MEASURE_SECONDS, PARTITION_STRATEGY, PARTITION_MODE, DEVICE_CONFIGS,
    DUMP_GRAPH, TARGET,
)  # fmt: skip
"""The config keys of HETERO only."""
