"""The properties that BATCH adds to the common ones."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property
from engine.properties import DEVICE_CONFIGS, DEVICE_PRIORITIES, TARGET

BATCH_SIZE = Property(
    "BATCH_SIZE",
    int,
    0,
    CONFIG,
    "How many requests make a full batch, as the number in BATCH:CPU(16). 0: what the device tells in its metric "
    "OPTIMAL_BATCH_SIZE, else 8.",
    minimum=0,
    maximum=65536,
)
BATCH_TIMEOUT = Property(
    "BATCH_TIMEOUT",
    float,
    5.0,
    CONFIG,
    "How long a request waits for others, in milliseconds, before it runs in a batch that is not full.",
    minimum=0.0,
    maximum=3600000.0,
)
BATCH_CHECK = Property(
    "BATCH_CHECK",
    bool,
    True,
    CONFIG,
    "Whether results of a batch are compared with single requests' results before a batch is relied on, so that a "
    "model whose requests would affect each other is refused.",
)
BATCH_STATISTICS = Property(
    "BATCH_STATISTICS",
    dict,
    {},
    METRIC,
    "How many batches were full (`full`), were not (`partial`), were repeated request by request after an error "
    "(`repeated`), and how many requests all of them had (`requests`).",
)
BATCH_SIZES = Property(
    "BATCH_SIZES",
    dict,
    {},
    METRIC,
    "How many batches had how many requests, such as 300 batches of 16 as '16': 300, since the network was compiled.",
)
BATCH_RUNS = Property(
    "BATCH_RUNS",
    dict,
    {},
    METRIC,
    "How many batches with how many rows have run without an error, and for how many nanoseconds in all, such as 300 "
    "batches of 16 rows as '16': [300, 96000000], since the network was compiled.",
)
PARTIAL_BATCHES = Property(
    "PARTIAL_BATCHES",
    str,
    "",
    METRIC,
    "How partial batches run: `one network` for all sizes, or `one by one`, if the device does not take "
    "models whose batch is not fixed.",
)
MAX_BATCH_SIZE = Property("MAX_BATCH_SIZE", int, 1, METRIC, "How many requests a full batch has.", minimum=1)
OWN_PROPERTIES = (DEVICE_PRIORITIES, BATCH_SIZE, BATCH_TIMEOUT, BATCH_CHECK, DEVICE_CONFIGS, TARGET)
OWN_METRICS = (MAX_BATCH_SIZE, BATCH_STATISTICS, BATCH_SIZES, BATCH_RUNS, PARTIAL_BATCHES)
