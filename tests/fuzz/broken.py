"""A generator whose cases fail in every way, for the tests of the tools themselves."""

from __future__ import annotations

import os
import time

import numpy as np

from .finding import Finding, note

LIMIT = 2.0
MEMORY = 1 << 30
INTERRUPTS = False
IS_KEPT = False

ENDS = ("fine", "finding", "error", "abort", "hang", "memory")


def prepare(devices: tuple[str, ...]) -> None:
    """Nothing."""


def files(seed: int) -> dict[str, bytes]:
    """The name of the end."""
    return {"end.txt": ENDS[seed].encode()}


def run(seed: int) -> str:
    """End in the way that the seed chooses."""
    note(f"going: {ENDS[seed]}")
    match ENDS[seed]:
        case "finding":
            raise Finding("wrong result", "1 + 1 = 3")
        case "error":
            raise KeyError("x")
        case "abort":
            os.abort()
        case "hang":
            time.sleep(100)
        case "memory":
            np.ones(1 << 30, np.float32)
    return "fine"
