"""The properties that ISOLATED adds to the common ones."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property
from engine.properties import (
    DEVICE_CONFIGS,
    DEVICE_PRIORITIES,
    EXECUTION_PRECISION,
    EXECUTION_THREADS,
    INSTRUCTION_SET,
)

HANG_TIMEOUT = Property(
    "HANG_TIMEOUT",
    float,
    600.0,
    CONFIG,
    "After how many seconds without a result an inference counts as hung: it ends with an error, and its process takes "
    "no further inferences and is replaced. 0: never.",
    minimum=0.0,
    maximum=31536000.0,
)
CALL_TIMEOUT = Property(
    "CALL_TIMEOUT",
    float,
    3600.0,
    CONFIG,
    "After how many seconds without an answer the process counts as hung when it starts, compiles, imports, exports or "
    "answers a question; it is killed. 0: never.",
    minimum=0.0,
    maximum=31536000.0,
)
MAX_CRASHES = Property(
    "MAX_CRASHES",
    int,
    5,
    CONFIG,
    "How many times in a row, without an inference that succeeds, the process of a network may crash or hang. From "
    "the second on, the next start waits for up to 5 seconds; after the last, inferences end with an error at once.",
    minimum=1,
    maximum=1000000,
)
MAX_PROCESS_BYTES = Property(
    "MAX_PROCESS_BYTES",
    int,
    0,
    CONFIG,
    "The process is replaced between two inferences when it holds more bytes of memory that no other process shares, "
    "so that a device may leak. 0: no limit.",
    minimum=0,
)
PROCESS_STATISTICS = Property(
    "PROCESS_STATISTICS",
    dict,
    {},
    METRIC,
    "The process of the network: its number (`pid`; 0 if none runs now), the bytes of memory that no other process "
    "shares (`own_bytes`), and how many have been started (`starts`), have crashed (`crashes`), have hung (`hangs`), "
    "and have been replaced because of their memory (`replaced`).",
)
DEVICE_METRICS = Property(
    "DEVICE_METRICS",
    dict,
    {},
    METRIC,
    "The metrics of the device's own network, by name, as its process reports them now; empty if none runs.",
)
OWN_PROPERTIES = (DEVICE_PRIORITIES, HANG_TIMEOUT, CALL_TIMEOUT, MAX_CRASHES, MAX_PROCESS_BYTES, DEVICE_CONFIGS)
OWN_METRICS = (
    PROCESS_STATISTICS, DEVICE_METRICS, EXECUTION_PRECISION, EXECUTION_THREADS, INSTRUCTION_SET,
)  # fmt: skip
