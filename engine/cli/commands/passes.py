"""`engine passes`: the available passes, and why one does not match."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from engine.cli.options import UsageError, add_extension, add_json, add_preprocess, add_shape, positive
from engine.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from engine.passes import Pass

SUMMARY = "list the passes, or say why one does not match"
DESCRIPTION = """\
`list` prints every pass of the engine and of the installed plugins: name, kind, file and what it does. `explain` says
why the pattern of PASS does not match at node NODE of MODEL: how far it came, and the first type, predicate or edge
that did not fit. Without NODE it reports every node where the pattern matches or, if it matches nowhere, the nodes
where it came furthest. Where it matches, the callback is tried on a copy of the model.
"""
EXAMPLES = """\
engine passes list                                   # is there a pass for this already?
engine passes explain model.onnx GeluFusion          # where it matches, or where it nearly does
engine passes explain model.onnx GeluFusion mul_3    # why not at this node
engine passes explain model.onnx PadConvFusion --after ConstantFolding  # in the model as that pass leaves it
"""
_MAX_EXPLAINED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="list|explain", choices=("list", "explain"), help="what to do")
    parser.add_argument("model", metavar="MODEL", nargs="?", help="an ONNX model")
    parser.add_argument("pass_name", metavar="PASS", nargs="?", help="a name that `list` prints")
    parser.add_argument("node", metavar="NODE", nargs="?", help="the friendly name of a node")
    parser.add_argument(
        "--after",
        metavar="PASS",
        action="append",
        default=[],
        help="run this pass on the model first; may be given several times",
    )
    parser.add_argument(
        "--most",
        metavar="N",
        type=positive,
        default=_MAX_EXPLAINED,
        help=f"explain at most this many nodes (default: {_MAX_EXPLAINED})",
    )
    add_extension(parser)
    add_shape(parser)
    add_preprocess(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List the passes or explain one."""
    if args.action == "explain":
        return _explain(args)
    if args.model is not None:
        raise UsageError("`engine passes list` takes no further arguments")
    return _list(args)


def _list(args: argparse.Namespace) -> int:
    from engine.cli.networks import plugin_packages
    from engine.passes import list_passes

    rows = [
        {"name": info.name, "kind": info.kind, "doc": info.doc, "file": _shown(info.file), "line": info.line}
        for info in list_passes(plugin_packages())
    ]
    if args.json:
        print_json({"passes": rows})
        return 0
    print_table(
        [(row["name"], row["kind"], f"{row['file']}:{row['line']}", row["doc"]) for row in rows],
        ("PASS", "KIND", "FILE", "WHAT IT DOES"),
    )
    return 0


def _explain(args: argparse.Namespace) -> int:
    from engine.cli.networks import make_core, read_shaped
    from engine.passes import Manager, explain_pass

    if args.model is None or args.pass_name is None:
        raise UsageError("`engine passes explain` takes a MODEL and a PASS")
    item = _make(args.pass_name)
    before = Manager()
    for name in args.after:
        before.register_pass(_make(name))
    model = read_shaped(make_core(args), args.model, args)
    before.run_passes(model)
    found = explain_pass(item, model, args.node, args.most)
    if args.json:
        print_json({"pass": item.name, "explanations": [asdict(explanation) for explanation in found]})
        return 0
    for explanation in found:
        say(str(explanation), lines=True)
    return 0


def _make(name: str) -> Pass:
    """The pass with this name and default options."""
    from engine.cli.networks import plugin_packages
    from engine.passes import find_pass

    info = find_pass(name, plugin_packages())
    try:
        return info.cls()
    except TypeError as e:
        raise UsageError(f"pass {name} cannot be created without arguments: {e}") from e


def _shown(path: str) -> str:
    """A path, relative to the current folder if that is shorter."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
