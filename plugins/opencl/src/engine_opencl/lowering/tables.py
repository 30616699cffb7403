"""Tables that are made on the host and uploaded once: of indices, of weights, of constants in another order."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import PlanBuilder


def table(b: PlanBuilder, values: NDArray[Any]) -> Buffer:
    """A buffer of these values; equal tables of a network are one."""
    data = np.ascontiguousarray(values)
    name = ("table", data.dtype.str, hashlib.sha256(data.tobytes()).hexdigest())
    return b.weight(name, lambda: data)
