"""`engine profile`: where the time of inferences goes, as a table, a trace for Perfetto, or a page."""

from __future__ import annotations

import argparse
import os.path
from typing import TYPE_CHECKING, Any

from engine.cli.options import (
    MODEL_OR_BLOB,
    UsageError,
    add_config,
    add_device,
    add_extension,
    add_inputs,
    add_json,
    add_trust,
    count,
    positive,
)
from engine.cli.output import print_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.plugin_api import ExecutableNetwork
    from engine.runtime import ProfilingInfo

SUMMARY = "show where the time of inferences goes: by stage, node and kernel, or as a trace"
DESCRIPTION = """\
Run inferences with PERF_COUNT, and print the mean times of their stages, of what they wait for, and of the nodes that
take longest, with the kernels that ran them and, for HETERO, their subgraphs. --trace writes a trace of requests,
stages, executors, steps, transfers, waits, and of the memory for intermediate results over time, which
https://ui.perfetto.dev and chrome://tracing show; --html a page with the same timeline.

Profiling takes time itself; `engine benchmark` measures without it.
"""
EXAMPLES = """\
engine profile model.onnx -d CPU                           # the nodes that take longest
engine profile model.onnx -d CPU --most 3 --seed 7         # only three of them
engine profile model.onnx -d HETERO:TEMPLATE,CPU --trace trace.json  # for Perfetto
engine profile model.onnx -d CPU --requests 2 --count 8 --html profile.html  # two requests at once, as a page
engine profile model.blob --json                           # all nodes, for programs
"""
_MAX_NODES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE", help=MODEL_OR_BLOB)
    add_device(parser)
    add_config(parser)
    add_trust(parser)
    add_extension(parser)
    add_inputs(parser)
    parser.add_argument(
        "--requests",
        metavar="N",
        type=count,
        default=0,
        help="keep this many requests in flight (default: 0, one inference after the other)",
    )
    parser.add_argument(
        "--count", metavar="M", type=positive, default=10, help="how many inferences are recorded (default: 10)"
    )
    parser.add_argument(
        "--most",
        metavar="N",
        type=positive,
        default=_MAX_NODES,
        help=f"print at most this many nodes (default: {_MAX_NODES})",
    )
    parser.add_argument("--trace", metavar="FILE", help="write a trace in Chrome's trace-event format (JSON)")
    parser.add_argument("--html", metavar="FILE", help="write a page with a timeline and tables")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from engine.cli.networks import device_of, make_core, network_inputs, open_network, require_folder
    from engine.runtime.profiling import profile_network
    from engine.runtime.trace import write_trace

    for option, path in (("--trace", args.trace), ("--html", args.html)):
        if path is not None:
            require_folder(path)
            if os.path.isdir(path):
                raise UsageError(f"{option} {path}: this is a folder; expected the name of a file")
    if args.trace is not None and args.trace == args.html:
        raise UsageError(f"--trace and --html name the same file {args.trace}")
    args.config.append(("PERF_COUNT", "true"))
    network = open_network(make_core(args), args).network
    made = profile_network(network, network_inputs(network, args), requests=args.requests, count=args.count)
    files = []
    if args.trace is not None:
        write_trace(made.profiles, args.trace, f"{network.name} on {network.plugin.name}")
        files.append(args.trace)
    if args.html is not None:
        _write_page(network, made.profiles, args)
        files.append(args.html)
    if args.json:
        print_json(_facts(network, made.profiles, args) | {"files": files})
        return 0
    from engine.runtime.profile_table import profile_table

    say(f"network `{network.name}` on {device_of(network, args.device)}")
    say(profile_table(made.profiles, args.most), lines=True)
    for file in files:
        say(f"wrote {file}")
    return 0


def _write_page(network: ExecutableNetwork, profiles: Sequence[ProfilingInfo], args: argparse.Namespace) -> None:
    from engine.cli.networks import device_of
    from engine.drawing.table import count as counted
    from engine.drawing.table import printable
    from engine.files import write_file
    from engine.runtime.profile_page import profile_page

    how = f"{args.requests} in flight" if args.requests else "one after the other"
    device = device_of(network, args.device)
    note = f"{counted(len(profiles), 'inference')} on {device}, {how}, with PERF_COUNT. Times in tables are means."
    text = profile_page(profiles, f"Profile of {printable(network.name)}", [note]).encode("utf-8", "backslashreplace")
    write_file(args.html, text)


def _facts(network: ExecutableNetwork, profiles: Sequence[ProfilingInfo], args: argparse.Namespace) -> dict[str, Any]:
    from engine.runtime.profile_table import layers_of, stages_of

    number = len(profiles)
    return {
        "network": network.name,
        "devices": list(network.get_metric("EXECUTION_DEVICES")),
        "inferences": number,
        "requests": args.requests,
        "mean_ns": sum(profile.duration_ns for profile in profiles) / number,
        "stages": [
            {"name": name, "executor": executor, "mean_ns": total / number}
            for (name, executor), total in stages_of(profiles).items()
        ],
        "nodes": [
            {
                "name": layer.name,
                "op": layer.op_type,
                **({"nodes": list(layer.nodes)} if layer.nodes else {}),
                "kernels": list(layer.kernels),
                "subgraphs": list(layer.parts),
                "mean_ns": layer.nanoseconds / number,
            }
            for layer in layers_of(profiles)
        ],
        "transfers": [
            {"name": t.name, "from": t.source, "to": t.target, "bytes": t.byte_size, "ns": t.duration_ns}
            for profile in profiles
            for t in profile.transfers
        ],
    }
