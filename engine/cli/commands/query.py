"""`engine query`: which nodes of a model a device supports."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.memory_table import print_forecast
from engine.cli.options import (
    UsageError,
    add_config,
    add_device,
    add_extension,
    add_json,
    add_preprocess,
    add_shape,
    device_name,
    key_and_value,
)
from engine.cli.output import print_json, print_table, say
from engine.drawing.table import byte_count, count, duration
from engine.errors import EngineError
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine.core import Core
    from engine.core.what_if import QuerySummary
    from engine.ir import Model
    from engine.plugin_api import ExecutableNetwork, MemoryForecast, QueryResult

SUMMARY = "show which nodes of a model a device supports, and how a multi-device plugin places them"
DESCRIPTION = """\
Print how a device would run each node of a model, counted by operator: natively, by reference evaluation on the host
(correct but slow), or not at all. The exit code is 1 if a node is refused. For a quantized model, `--why` also lists
each node that the device computes on real values though its operands are quantized, with the reason. For a model whose
inputs have unknown lengths, `--why` compiles it, and prints which of them the device serves with one plan, and which
node needs a plan for each value, if the device says so.

A device that runs on others, such as HETERO:OPENCL,CPU, also reports how it would divide the model. `--why` then prints
the subgraphs with their operators, the bytes transferred between them and their predicted times, the lower bound on
their number, the nodes that each device refused and why, and the subgraphs that cost more than they gain.

`--memory` compiles the model and prints the memory that inferences will take, on each device: nothing is inferred.
`peak` is what the network takes at most with `streams` inferences at one time; compiling may take more for a while. For
a model whose inputs have unknown lengths, `--shape` states them.

`--what-if` queries again with changes: another device, config keys, or passes that do not run. The counts of each query
and the nodes that would run differently are printed.
"""
EXAMPLES = """\
engine query model.onnx -d TEMPLATE          # counts by operator
engine query model.onnx -d TEMPLATE --why    # each node that is not native, with the reason
engine query model.onnx -d TEMPLATE --nodes  # each node
engine query model.onnx -d HETERO:OPENCL,CPU --why                     # how the model is divided, and why
engine query model.onnx -d HETERO:OPENCL,CPU --why -c PLACEMENT=measured  # the same, with times measured here
engine query model.onnx -d HETERO:OPENCL,CPU --picture placement.html  # a picture of it
engine query model.onnx -d TEMPLATE --shape x=8,3,224,224              # for inputs of this shape
engine query model.onnx -d HETERO:OPENCL,CPU --what-if HETERO:CPU,OPENCL  # with other priorities
engine query model.onnx -d CPU --memory -c NUM_STREAMS=4               # the memory of 4 inferences at one time
engine query model.onnx -d CPU --what-if INFERENCE_PRECISION_HINT=f32 --what-if without:GeluFusion  # two other queries
"""
_WITHOUT = "without:"
_MAX_CHANGES = 10
_WRONG_CHANGE = 3
_LEVELS = ("native", "reference", "refused")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    add_device(parser)
    add_config(parser)
    add_extension(parser)
    add_shape(parser)
    add_preprocess(parser)
    parser.add_argument(
        "--why",
        action="store_true",
        help="list the nodes that are not native, or not in the model's precision, with the reasons, how nodes are "
        "placed, and which lengths one plan serves",
    )
    parser.add_argument("--nodes", action="store_true", help="list every node, and with --why everything about each")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="compile the model, and print the bytes that inferences will take: weights, results, inputs and outputs",
    )
    parser.add_argument(
        "--past",
        metavar="LENGTH",
        type=length,
        help="with --memory: the length of the model's variables before the inference, as of past tokens; by default 0",
    )
    parser.add_argument(
        "--picture",
        metavar="FILE",
        help="write a picture (.svg, .html or .dot) of how a device that runs on others divides the model",
    )
    parser.add_argument(
        "--what-if",
        metavar="CHANGES",
        action="append",
        default=[],
        type=changes,
        help="query also with these changes, separated by spaces: DEVICE, KEY=VALUE, and without:PASS, where PASS is a "
        "name that `engine passes list` prints; may be given several times",
    )
    add_json(parser)


@dataclass(frozen=True, slots=True)
class Changes:
    """One `--what-if`: its text, another device, changed properties, and passes that are left out."""

    text: str
    device: str | None
    config: tuple[tuple[str, str], ...]
    without: tuple[str, ...]


def changes(text: str) -> Changes:
    """Parse `DEVICE KEY=VALUE without:PASS`, each of which may be absent; several settings and passes are allowed."""
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{e} in {text!r}") from None
    passes = [word.removeprefix(_WITHOUT) for word in words if word.startswith(_WITHOUT)]
    settings = [word for word in words if "=" in word and not word.startswith(_WITHOUT)]
    devices = [word for word in words if "=" not in word and not word.startswith(_WITHOUT)]
    if not words or len(devices) > 1 or not all(passes):
        raise argparse.ArgumentTypeError(f"expected at most one DEVICE, KEY=VALUE, without:PASS; got {text!r}")
    return Changes(
        text, device_name(devices[0]) if devices else None, tuple(map(key_and_value, settings)), tuple(passes)
    )


def length(text: str) -> int:
    """Parse a number, 0 or more."""
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number, 0 or more; got {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from engine.cli.networks import make_core, parse_config, read_shaped, require_device

    if args.picture is not None:
        _require_picture(args.picture)
    if args.past is not None and not args.memory:
        raise UsageError("--past is the length of variables for --memory; add --memory")
    core = make_core(args)
    device = require_device(core, args)
    config = parse_config(core, device, args.config)
    model = read_shaped(core, args.model, args)
    answer = core.query_model(model, device, config)
    is_drawn = args.picture is not None and _draw(model, answer, args.picture, device)
    nodes = _nodes(model, answer)
    lengths = _lengths(core, model, device, config) if args.why and answer.is_supported else ()
    memory = _memory(core, model, device, config, args) if args.memory and answer.is_supported else None
    others, failures = _all_changed(core, args, device)
    if args.json:
        report = {"device": device, "supported": answer.is_supported, "nodes": nodes, "atoms": _atoms(answer)}
        if answer.placement is not None:
            report["placement"] = answer.placement.to_json()
        if args.why:
            report["lengths"] = list(lengths)
        if memory is not None:
            report["memory"] = memory[1].to_json()
        if others:
            report["what_if"] = [_as_json(each.text, (device, answer), other) for each, other in others]
        if failures:
            report["what_if_errors"] = {each.text: str(error) for each, error in failures}
        print_json(report)
    else:
        _print(model, nodes, answer, args)
        for line in lengths:
            say(f"length: {line}")
        if memory is not None:
            say()
            print_forecast(*memory)
        if others:
            _print_others((device, answer), others, is_complete=args.nodes)
        if is_drawn:
            say(f"\nwrote {args.picture}")
    for each, error in failures:
        say(f"engine query: --what-if {each.text!r}: {error}", to_stderr=True)
    if failures:
        return _WRONG_CHANGE
    return 0 if answer.is_supported else 1


def _memory(
    core: Core, model: Model, device: str, config: Mapping[str, Any], args: argparse.Namespace
) -> tuple[ExecutableNetwork, MemoryForecast]:
    """The compiled model, and its memory."""
    from engine.ir import TensorType

    network = core.compile_model(model, device, config)
    for port in network.inputs:
        if not isinstance(port.type, TensorType) or not port.type.shape.is_static:
            raise UsageError(f"--memory: the lengths of input `{port.name}` ({port.type}) are not known; give --shape")
    return network, network.memory_forecast(past=args.past or 0)


def _all_changed(
    core: Core, args: argparse.Namespace, device: str
) -> tuple[list[tuple[Changes, tuple[str, QueryResult]]], list[tuple[Changes, EngineError]]]:
    """The answers with changes, and the errors of changes that are not possible."""
    others: list[tuple[Changes, tuple[str, QueryResult]]] = []
    failures: list[tuple[Changes, EngineError]] = []
    for each in args.what_if:
        try:
            others.append((each, _changed(core, args, device, each)))
        except EngineError as e:
            failures.append((each, e))
    return others, failures


def _changed(core: Core, args: argparse.Namespace, device: str, what_if: Changes) -> tuple[str, QueryResult]:
    """The device and its answer with changes. The model is read again: a query may annotate it."""
    from engine.cli.networks import parse_config, plugin_packages, read_shaped
    from engine.passes import find_pass
    from engine.passes.regions import without_passes

    for name in what_if.without:
        find_pass(name, plugin_packages())
    other = device if what_if.device is None else what_if.device
    config = parse_config(core, other, [*args.config, *what_if.config])
    with without_passes(what_if.without):
        return other, core.query_model(read_shaped(core, args.model, args), other, config)


def _as_json(text: str, answer: tuple[str, QueryResult], other: tuple[str, QueryResult]) -> dict[str, Any]:
    from engine.core.what_if import QuerySummary, node_changes

    changed = [asdict(change) for change in node_changes(answer, other)]
    return {"changes": text, **asdict(QuerySummary.of(other[1])), "nodes": changed}


def _print_others(
    answer: tuple[str, QueryResult], others: Sequence[tuple[Changes, tuple[str, QueryResult]]], *, is_complete: bool
) -> None:
    from engine.core.what_if import QuerySummary, node_changes

    answers = [answer, *((each.text, other) for each, (_, other) in others)]
    summaries = [(text, QuerySummary.of(each)) for text, each in answers]
    is_divided = any(summary.subgraphs is not None for _, summary in summaries)
    say()
    print_table(
        [(text, s.native, s.reference, s.refused, *(_division(s) if is_divided else ())) for text, s in summaries],
        ("WHAT IF", "NATIVE", "REFERENCE", "REFUSED", *(("PARTS", "PASSED ON", "PREDICTED") if is_divided else ())),
    )
    for each, other in others:
        found = node_changes(answer, other)
        say(f"\n{each.text}: {count(len(found), 'node')} would run otherwise")
        shown = found if is_complete else found[:_MAX_CHANGES]
        print_table([(f"  {change.node}", change.before, "->", change.after) for change in shown])
        if len(found) > len(shown):
            say(f"  and {len(found) - len(shown)} more; --nodes lists all")


def _division(summary: QuerySummary) -> tuple[object, ...]:
    if summary.subgraphs is None or summary.crossing_bytes is None:
        return ("-", "-", "-")
    seconds = summary.predicted_seconds
    return summary.subgraphs, byte_count(summary.crossing_bytes), "-" if seconds is None else duration(seconds)


def _require_picture(path: str) -> None:
    from engine.cli.networks import require_folder
    from engine.placement.picture import SUFFIXES

    if Path(path).suffix not in SUFFIXES:
        raise UsageError(f"--picture {path}: the file name must end with {' or '.join(SUFFIXES)}")
    require_folder(path)


def _draw(model: Model, answer: QueryResult, path: str, device: str) -> bool:
    """Write the picture if there is a placement to draw; otherwise print why not."""
    from engine.placement.picture import write_picture
    from engine.visualize import model_graph

    if answer.placement is not None:
        write_picture(answer.placement, path, model.name, model_graph(model))
        return True
    if answer.is_supported:
        raise UsageError(
            f"--picture: {device} runs the model itself; a picture shows how a device that runs on others, such as "
            "HETERO:OPENCL,CPU, divides it"
        )
    say(f"engine query: no picture: {device} cannot place a model with refused nodes", to_stderr=True)
    return False


def _lengths(core: Core, model: Model, device: str, config: Mapping[str, Any]) -> Sequence[str]:
    """The device's report on the unknown lengths of the inputs; empty if there are none, or no report."""
    from engine.ir import TensorType
    from engine.properties import SUPPORTED_METRICS, VARYING_LENGTHS

    if all(not isinstance(each.type, TensorType) or each.type.shape.is_static for each in model.parameters):
        return ()
    network = core.compile_model(model, device, config)
    if VARYING_LENGTHS.name not in network.get_metric(SUPPORTED_METRICS.name):
        return ()
    found: Sequence[str] = network.get_metric(VARYING_LENGTHS.name)
    return found


def _nodes(model: Model, answer: QueryResult) -> list[dict[str, Any]]:
    return [
        {
            "name": node.friendly_name,
            "op": f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
            "support": answer[node.friendly_name].level.value,
            "cause": answer[node.friendly_name].cause,
            "reason": answer[node.friendly_name].reason,
            "precision": answer[node.friendly_name].precision,
            "precision_reason": answer[node.friendly_name].precision_reason,
        }
        for node in model.ordered_nodes()
        if node.friendly_name in answer.nodes and node.op_type not in ("Parameter", "Constant", "Result")
    ]


def _atoms(answer: QueryResult) -> list[list[str]]:
    return [sorted(atom) for atom in answer.atoms]


def _print(model: Model, nodes: list[dict[str, Any]], answer: QueryResult, args: argparse.Namespace) -> None:
    counts = Counter((node["op"], node["support"]) for node in nodes)
    operators = sorted({node["op"] for node in nodes})
    rows: list[list[object]] = [[op, *(counts[op, level] for level in _LEVELS)] for op in operators]
    rows.append(["total", *(sum(counts[op, level] for op in operators) for level in _LEVELS)])
    print_table(rows, ("OPERATOR", "NATIVE", "REFERENCE", "REFUSED"))
    if args.nodes:
        say()
        rows = [[node[key] for key in ("name", "op", "support", "precision")] for node in nodes]
        print_table(rows, ("NODE", "OPERATOR", "SUPPORT", "PRECISION"))
    if args.why:
        say()
        _print_why(model, nodes, answer, args.nodes)


def _print_why(model: Model, nodes: list[dict[str, Any]], answer: QueryResult, is_complete: bool) -> None:
    from engine.placement.text import placement_text

    told: set[str] = set()
    if answer.placement is not None:
        say(placement_text(answer.placement, model.name, is_complete=is_complete, hint="--nodes lists all"), lines=True)
        told = {refusal.node for refusal in answer.placement.refusals}
    for node in nodes:
        if node["support"] != "native" and node["name"] not in told:
            cause = f" ({node['cause']})" if node["cause"] else ""
            say(f"{node['support']}: {node['op']} `{node['name']}`{cause}: {node['reason']}")
    for node in nodes:
        if node["precision_reason"]:
            say(f"in {node['precision']}: {node['op']} `{node['name']}`: {node['precision_reason']}")
    for atom in _atoms(answer):
        say(f"together or not at all: {', '.join(atom)}")
