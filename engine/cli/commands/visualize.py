"""`engine visualize`: the graph of a model or a blob, as a page, a picture, or Graphviz's dot."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
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
)
from engine.cli.output import print_json, say

if TYPE_CHECKING:
    from engine.core import Core
    from engine.drawing.graph import Graph
    from engine.ir import Model
    from engine.plugin_api import ExecutableNetwork
    from engine.visualize import GraphOptions

SUMMARY = "draw the graph of a model or a blob"
DESCRIPTION = """\
Draw the graph of a model: as a page (.html) in which nodes can be searched and groups opened and closed, as a picture
(.svg), or for Graphviz (.dot). The page needs no network and no other file; groups are the parts of names that are
divided by "/", or by ".", and the bodies of control flow.

With a device, operations have the device's colour: for HETERO, where each one is placed, and its subgraph. --compiled
draws the graph that the device runs, after its passes; a blob has only this one. --profile runs the network once to
warm up and once to measure, and shows the times; the time of a node includes the nodes that are fused with it.
"""
EXAMPLES = """\
engine visualize model.onnx -o graph.html                    # look around in a model
engine visualize model.onnx -o graph.svg --colour precision  # a picture, coloured by element type
engine visualize model.onnx -o graph.dot                     # for Graphviz
engine visualize model.onnx -d HETERO:TEMPLATE,CPU -o graph.html  # where HETERO places each operation
engine visualize model.onnx -d CPU --profile -o graph.html   # where the time goes
engine visualize model.onnx -d CPU --compiled -o graph.html  # the graph after the device's passes
engine visualize model.blob -o graph.html                    # the graph in a blob
"""
_COLOURS = ("device", "time", "operator", "precision")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE", help=MODEL_OR_BLOB)
    parser.add_argument(
        "-o", "--output", metavar="PICTURE", required=True, help="the file to write; it ends with .html, .svg or .dot"
    )
    add_device(parser)
    add_config(parser)
    add_trust(parser)
    add_extension(parser)
    add_inputs(parser)
    parser.add_argument("--compiled", action="store_true", help="draw the graph that the device runs")
    parser.add_argument("--profile", action="store_true", help="run the network, and show the time of each node")
    parser.add_argument(
        "--colour",
        choices=_COLOURS,
        help="what colours show at first (default: the time if it is measured, else the device if there is one, else "
        "the operator)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from engine.cli.networks import make_core, require_folder
    from engine.drawing.colouring import colourings
    from engine.visualize import SUFFIXES, write_graph

    if Path(args.output).suffix not in SUFFIXES:
        raise UsageError(f"-o {args.output}: the file name must end with {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    require_folder(args.output)
    graph = _graph(make_core(args), args)
    # A device that runs the whole model as one tells no time of a node.
    has_times = args.profile and any(each.name == "time" for each in colourings(graph))
    try:
        write_graph(graph, args.output, colour=args.colour or ("time" if has_times else None))
    except ValueError as e:
        raise UsageError(f"--colour {args.colour}: {e}") from e
    facts = {
        "file": str(args.output),
        "graph": graph.name,
        "nodes": len(graph.nodes),
        "operations": graph.operation_count,
        "edges": len(graph.edges),
        "notes": list(graph.notes),
    }
    if args.json:
        print_json(facts)
    else:
        say(f"wrote {args.output}: {facts['operations']} operations of `{graph.name}`")
        for note in graph.notes:
            say("\n".join(wrap(note, 79)), lines=True)
    return 0


def _graph(core: Core, args: argparse.Namespace) -> Graph:
    from engine.blob import is_blob
    from engine.cli.networks import open_network, parse_config, read_shaped
    from engine.visualize import GraphOptions, answered_graph, model_graph

    is_model = not is_blob(args.model)
    if is_model and args.device is None and (args.profile or args.compiled):
        raise UsageError(f"{'--profile' if args.profile else '--compiled'} needs a device for the model: -d DEVICE")
    options = GraphOptions()
    notes: tuple[str, ...] = ()
    read: list[Model] = []

    def keep(model: Model) -> Model:
        read.append(model)  # reading the model again would give unnamed nodes other names
        return model

    network: ExecutableNetwork | None = None
    if args.profile or args.compiled or not is_model:
        if args.profile:
            args.config.append(("PERF_COUNT", "true"))
        network = open_network(core, args, keep).network
        if args.profile:
            options, notes = _profiled(network, args)
    if network is not None and (args.compiled or not is_model):
        graph = _compiled(network, options)
    else:
        model = read[0] if read else read_shaped(core, args.model, args)
        graph = model_graph(model, options)
        if args.device is not None:
            config = parse_config(core, args.device, args.config)
            graph = answered_graph(graph, core.query_model(model, args.device, config), args.device)
    return replace(graph, notes=(*graph.notes, *notes))


def _compiled(network: ExecutableNetwork, options: GraphOptions) -> Graph:
    from engine.visualize import network_graph

    name = "SUBGRAPH_DEVICES"
    has_parts = name in network.get_metric("SUPPORTED_METRICS")
    devices = network.get_metric(name if has_parts else "EXECUTION_DEVICES")
    return network_graph(network.graph, network.name, devices or (network.plugin.name,), options)


def _profiled(network: ExecutableNetwork, args: argparse.Namespace) -> tuple[GraphOptions, tuple[str, ...]]:
    """The times of one inference after another one, and a sentence about them."""
    from engine.cli.networks import network_inputs
    from engine.drawing.table import count as counted
    from engine.drawing.table import duration
    from engine.visualize import GraphOptions

    inputs: dict[str, Any] = network_inputs(network, args)
    request = network.create_infer_request()
    for _ in range(2):
        request.infer(inputs)
    profile = request.profiling_info
    times = {name: ns / 1e6 for name, ns in profile.node_nanoseconds.items()}
    notes = {record.node_name: {"kernel": record.kernel} for record in profile.nodes if record.kernel}
    joined = [record for record in profile.nodes if record.nodes]
    for record in joined:
        shown = {"runs in": f"{record.name}, {duration(record.duration_ns / 1e9)} together"}
        notes |= dict.fromkeys(record.nodes, shown | ({"kernel": record.kernel} if record.kernel else {}))
    took = duration((profile.stages[-1].end_ns - profile.stages[0].start_ns) / 1e9) if profile.stages else "no time"
    listed = ", ".join(network.get_metric("EXECUTION_DEVICES") or (network.plugin.name,))
    note = (
        f"Times: one inference on {listed}, which took {took} with profiling; nodes took {sum(times.values()):.3f} ms."
    )
    if joined:
        together = duration(sum(record.duration_ns for record in joined) / 1e9)
        number = sum(len(record.nodes) for record in joined)
        pieces = counted(len(joined), "subgraph")
        note += f" {counted(number, 'node')} ran as {pieces}, without a time of each, in {together}."
    return GraphOptions(times=times, notes=notes), (note,)
