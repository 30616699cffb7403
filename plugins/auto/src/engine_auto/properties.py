"""The properties that AUTO adds to the common ones."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property
from engine.properties import CHOICE_IS_FINAL, DEVICE_CONFIGS, DEVICE_PRIORITIES

MEASURE_SECONDS = Property(
    "MEASURE_SECONDS",
    float,
    2.0,
    CONFIG,
    "How many seconds the devices of a network may be measured, all together, in the background, first inferences "
    "included, for which some compile; then the choice is final. 0 does not measure, and keeps the device that was "
    "ready first.",
    minimum=0.0,
    maximum=86400.0,
)
REUSE_CHOICE = Property(
    "REUSE_CHOICE",
    bool,
    True,
    CONFIG,
    "Whether a choice that was measured earlier, for this model, hint and machine, is used. Choices are kept in "
    "CACHE_DIR; without one, in the user's cache folder.",
    is_local=True,
)
CANDIDATES = Property(
    "CANDIDATES",
    dict,
    {},
    METRIC,
    "For each device that was considered: `state` (waiting, compiling, ready, chosen, not chosen, refused, failed, "
    "left out), `why` in words, and, where known, `compile_seconds` and `milliseconds` of an inference, as measured.",
)
CHOICE_REASON = Property(
    "CHOICE_REASON", str, "", METRIC, "Why inferences begin on the device of EXECUTION_DEVICES now, in words."
)
OWN_PROPERTIES = (DEVICE_PRIORITIES, MEASURE_SECONDS, REUSE_CHOICE, DEVICE_CONFIGS)
OWN_METRICS = (CANDIDATES, CHOICE_REASON, CHOICE_IS_FINAL)
