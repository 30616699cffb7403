"""Tables computed on the host and uploaded once: indices, weights, rearranged constants."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder


def table(b: LaunchPlanBuilder, values: NDArray[Any]) -> Buffer:
    """A buffer with these values; equal tables of a network share a buffer."""
    data = np.ascontiguousarray(values)
    name = ("table", data.dtype.str, hashlib.sha256(data.tobytes()).hexdigest())
    return b.weight(name, lambda: data)
