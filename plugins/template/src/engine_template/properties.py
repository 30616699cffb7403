"""The properties that TEMPLATE adds to those of every device: declare, and everything else follows."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property

TRANSFORMATIONS = Property(
    "TEMPLATE_TRANSFORMATIONS",
    bool,
    True,
    CONFIG,
    "Run the device's transformation pipeline on a model before it is mapped; off, nodes run as they were imported.",
)
STEP_COUNT = Property(
    "TEMPLATE_STEP_COUNT",
    int,
    None,
    METRIC,
    "The number of operations that the device runs for one inference.",
)
