"""The properties that TEMPLATE adds to the common ones; only the declaration is needed."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property

TRANSFORMATIONS = Property(
    "TEMPLATE_TRANSFORMATIONS",
    bool,
    True,
    CONFIG,
    "Whether the device's transformation pipeline runs on a model before it is mapped; if off, nodes run as imported.",
)
OPERATION_COUNT = Property(
    "TEMPLATE_OPERATION_COUNT",
    int,
    None,
    METRIC,
    "The number of operations that one inference runs.",
)
