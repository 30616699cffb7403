"""The table of a network's memory, with the networks on which it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from engine.cli.output import print_table, say
from engine.drawing.table import byte_count

if TYPE_CHECKING:
    from engine.plugin_api import ExecutableNetwork, MemoryForecast

_SIZES: Final = ("weights", "mapped", "arena", "scratch", "states", "inputs", "outputs", "peak")


def print_forecast(network: ExecutableNetwork, forecast: MemoryForecast) -> None:
    """Print the sizes of a network, and of each network on which it runs, in a row each."""
    print_table(
        list(_rows(network, forecast, "network")), ("MEMORY", "DEVICE", "STREAMS", *(size.upper() for size in _SIZES))
    )
    for name in forecast.unknown:
        say(f"not counted: {name}, whose results have sizes that only an inference knows")


def _rows(network: ExecutableNetwork, forecast: MemoryForecast, name: str) -> Iterator[tuple[object, ...]]:
    devices = ", ".join(network.get_metric("EXECUTION_DEVICES"))
    yield name, devices, forecast.streams, *(byte_count(getattr(forecast, size)) for size in _SIZES)
    parts = network.parts()
    for part, inner in forecast.parts.items():
        if part in parts:
            yield from _rows(parts[part], inner, part if name == "network" else f"{name}.{part}")
