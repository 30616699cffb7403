"""The line in the log for each network: the choices made for it, and its costs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Final

from engine.errors import EngineWarning
from engine.plugin_api import ExecutableNetwork
from engine.properties import (
    EXECUTION_DEVICES,
    EXECUTION_PRECISION,
    EXECUTION_THREADS,
    INSTRUCTION_SET,
    NUM_STREAMS,
    SUPPORTED_METRICS,
)

_log: Final = logging.getLogger("engine.core")


def report(network: ExecutableNetwork, what: str) -> None:
    """Log at INFO that a network was compiled, imported or loaded from the cache."""
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s `%s` in %.3f s: %s", what, network.name, network.compile_seconds, "; ".join(_facts(network)))


def warn_of(network: ExecutableNetwork, stacklevel: int = 3) -> None:
    """Issue an `EngineWarning`, if there are remarks, at the line that called the function that calls this.

    With a larger `stacklevel`, as of `warnings.warn`, it is at the line of an outer caller.
    """
    from engine.hosting.summary import remarks_of

    if remarks := remarks_of(network):
        text = f"{network.plugin.name} network `{network.name}`: {'; '.join(remarks)}"
        warnings.warn(EngineWarning(text), stacklevel=stacklevel)


def _facts(network: ExecutableNetwork) -> Iterator[str]:
    yield f"devices {', '.join(network.get_metric(EXECUTION_DEVICES.name))}"
    yield f"streams {network.config[NUM_STREAMS] or 1}"
    known = network.get_metric(SUPPORTED_METRICS.name)
    for metric, words in (
        (EXECUTION_THREADS, "threads of each"),
        (INSTRUCTION_SET, "instruction set"),
        (EXECUTION_PRECISION, "precision"),
    ):
        if metric.name in known:
            yield f"{words} {network.get_metric(metric.name)}"
    for name, size in network.memory_statistics().items():
        yield f"{name} {size / 1e6:.1f} MB"
