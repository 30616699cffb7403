"""Times of an exported network in this engine and its peers, in one process, with one thread, by its CPU time.

Networks of the sweep are small, and a pool of threads that waits would disturb the others; `compare.py` measures large
networks with several threads, in a process for each engine.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from comparison.engines import ENGINES, Setup, latencies

_ROUNDS = 5
_BLOCK_SECONDS = 0.02
_REST_SECONDS = 0.01


def milliseconds(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The median of the medians of alternating blocks, for each engine that can run the network."""
    calls: dict[str, Callable[[], Any]] = {}
    for name, engine in ENGINES.items():
        with contextlib.suppress(Exception):  # a peer that cannot run it is left out
            loaded = engine(Setup(threads=1, precision="f32"))
            loaded.load(str(path))
            call = loaded.runner(inputs)
            call()
            calls[name] = call
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(_ROUNDS):
        for name in sorted(calls, key=lambda each: (list(calls).index(each) + turn) % len(calls)):
            time.sleep(_REST_SECONDS)
            found[name].append(statistics.median(latencies(calls[name], _BLOCK_SECONDS, 2, "cpu")))
    return {name: 1e3 * statistics.median(each) for name, each in found.items()}
