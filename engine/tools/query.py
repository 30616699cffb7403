"""`engine query`: which nodes of a model a device supports."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from engine.tools.options import add_config, add_device, add_json
from engine.tools.output import print_json, print_table

if TYPE_CHECKING:
    from engine.ir import Model
    from engine.plugin_api import QueryResult

SUMMARY = "say which nodes of a model a device supports"
DESCRIPTION = """\
Ask a device, for every node of a model, whether it runs it natively, by reference evaluation on the host (right but
slow), or not at all, and print the counts by operator. The exit code is 1 where a node is refused.
"""
EXAMPLES = """\
engine query model.onnx -d TEMPLATE          # counts by operator
engine query model.onnx -d TEMPLATE --why    # each node that is not native, with the reason
engine query model.onnx -d TEMPLATE --nodes  # each node
"""
_LEVELS = ("native", "reference", "refused")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    add_device(parser)
    add_config(parser)
    parser.add_argument("--why", action="store_true", help="list the nodes that are not native, with reasons")
    parser.add_argument("--nodes", action="store_true", help="list every node")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Query a device."""
    from engine.core import Core
    from engine.tools.networks import parse_config, require_device

    core = Core()
    device = require_device(core, args)
    config = parse_config(core, device, args.config)
    model = core.read_model(args.model)
    answer = core.query_model(model, device, config)
    nodes = _nodes(model, answer)
    if args.json:
        print_json({"device": device, "supported": answer.is_supported, "nodes": nodes, "atoms": _atoms(answer)})
    else:
        _print(nodes, answer, args)
    return 0 if answer.is_supported else 1


def _nodes(model: Model, answer: QueryResult) -> list[dict[str, Any]]:
    return [
        {
            "name": node.friendly_name,
            "op": f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
            "support": answer[node.friendly_name].level.value,
            "cause": answer[node.friendly_name].cause,
            "reason": answer[node.friendly_name].reason,
        }
        for node in model.ordered_nodes()
        if node.friendly_name in answer.nodes and node.op_type not in ("Parameter", "Constant", "Result")
    ]


def _atoms(answer: QueryResult) -> list[list[str]]:
    return [sorted(atom) for atom in answer.atoms]


def _print(nodes: list[dict[str, Any]], answer: QueryResult, args: argparse.Namespace) -> None:
    counts = Counter((node["op"], node["support"]) for node in nodes)
    operators = sorted({node["op"] for node in nodes})
    rows: list[list[object]] = [[op, *(counts[op, level] for level in _LEVELS)] for op in operators]
    rows.append(["total", *(sum(counts[op, level] for op in operators) for level in _LEVELS)])
    print_table(rows, ("OPERATOR", "NATIVE", "REFERENCE", "REFUSED"))
    if args.nodes:
        print()
        print_table([(node["name"], node["op"], node["support"]) for node in nodes], ("NODE", "OPERATOR", "SUPPORT"))
    if args.why:
        print()
        for node in nodes:
            if node["support"] != "native":
                cause = f" ({node['cause']})" if node["cause"] else ""
                print(f"{node['support']}: {node['op']} `{node['name']}`{cause}: {node['reason']}")
        for atom in _atoms(answer):
            print(f"together or not at all: {', '.join(atom)}")
