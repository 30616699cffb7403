"""A process that runs one model in one engine: `python -m publishing.first ENGINE MODEL INPUTS` prints a JSON object.

`first`: CPU seconds from the start of the process to the first result; `milliseconds`: of a later inference, the median
of CPU times; `megabytes`: the largest memory of the process. All on one thread.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
from comparison.engines import ENGINES, Setup, latencies, process_memory

_SECONDS = 0.5


def main() -> None:
    name, path, inputs = sys.argv[1:]
    with np.load(inputs) as arrays:
        feed = {key: arrays[key] for key in arrays.files}
    engine = ENGINES[name](Setup(threads=1, precision="f32", effort="none"))
    engine.load(path)
    call = engine.runner(feed)
    call()
    first = time.process_time()
    peak = process_memory().get("peak", 0.0)
    later = statistics.median(latencies(call, _SECONDS, 2, "cpu"))
    print(json.dumps({"first": first, "milliseconds": 1e3 * later, "megabytes": peak}))


if __name__ == "__main__":
    main()
