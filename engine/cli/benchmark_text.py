"""The text that `engine benchmark` prints."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from engine.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.cli.benchmark import Series


def print_set_up(set_up: Mapping[str, Any]) -> None:
    """The network, and how long it took to get ready."""
    say(f"network     `{set_up['network']}` on {', '.join(set_up['device'])}")
    say(f"set-up      read {set_up['read_s']:.3f} s, compile or import {set_up['compile_s']:.3f} s, ", end="")
    # The measurement takes long; the output so far shows that it has started.
    say(f"first inference {set_up['first_inference_s']:.3f} s", flush=True)


def print_series(series: Series) -> None:
    """The figures of a measurement in this process."""
    from engine.cli.benchmark import describe_series

    _print_latency(describe_series(series))


def print_figures(document: Mapping[str, Any]) -> None:
    """The figures of the base of a comparison."""
    print_set_up(document)
    _print_latency(document)


def _print_latency(found: Mapping[str, Any]) -> None:
    in_flight = f"{found['requests']} in flight" if found["requests"] else "one after the other"
    latency = ", ".join(f"{name} {value:.3f}" for name, value in found["latency_ms"].items())
    say(f"inferences  {found['inferences']} in {found['duration_s']:.3f} s, {in_flight}")
    say(f"latency     {latency} ms")
    say(f"throughput  {found['throughput_per_s']:.3f} inferences/s")


def print_more(args: argparse.Namespace, document: Mapping[str, Any]) -> None:
    """The histogram, the layers and the comparison."""
    from engine.cli.benchmark import comparison_table, histogram_lines, layer_table
    from engine.cli.terminal import show_table

    if args.histogram:
        say()
        for line in histogram_lines(document):
            say(line)
    if document["layers"] is not None:
        shown = layer_table(document, args.layers or None)
        peak = document["peak_gflops"]
        known = "not measured" if peak is None else f"{peak:.0f} GFLOP/s, of a large matrix product on this device"
        say(f"\n{len(document['layers'])} layers; peak {known}")
        show_table(shown.rows, shown.header, shown.right)
    if document["compared"]:
        found = comparison_table(document)
        say("\nratio of times to the first: above 1 is faster; level if the interval holds 1")
        show_table(found.rows, found.header, found.right)
