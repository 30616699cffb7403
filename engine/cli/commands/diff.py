"""`engine diff`: the first node of a model where two devices or configurations differ."""

from __future__ import annotations

import argparse

from engine.cli.options import (
    UsageError,
    add_config,
    add_extension,
    add_inputs,
    add_json,
    amount,
    positive,
)
from engine.cli.output import print_json, say

SUMMARY = "find the first node where two devices or configurations differ"
DESCRIPTION = """\
Run a model on two sides on the same inputs, compare every value by its name, and name the first node that goes wrong by
itself: its value is off, and is also off when the node runs alone on the inputs that the second side has for it. So the
errors that a node only passes on are not taken for its own.

The first -d is examined, the second is the reference. Each is a device, with settings of its own. Errors are in units
of rounding: the element type's epsilon times the value's largest magnitude. A sum of n terms may be off by 8 (1 +
sqrt(n)) of them. Inner values are outputs while they are compared, which prevents fusions: if a difference then
disappears, a fusion causes it, and the command says so. If all values do not fit into --memory, some are compared, and
the search continues above the first that is off; this finds a fault whose effect lasts.

The exit code is 1 if a node goes wrong, or an output is off by more than the rounding of all nodes explains.
"""
EXAMPLES = """\
engine diff model.onnx -d CPU -d TEMPLATE                  # a device and the reference, on random inputs
engine diff model.onnx -d CPU -d ONNXRUNTIME -i x=cat.png  # with another runtime, on an image
engine diff model.onnx -d "CPU INFERENCE_PRECISION_HINT=bf16" -d "CPU INFERENCE_PRECISION_HINT=f32"  # two settings
engine diff model.onnx -d CPU -d TEMPLATE --html diff.html  # with a picture of the error by layer
engine diff model.onnx -d CPU -d TEMPLATE --memory 100     # values of at most 100 MB at a time
engine diff model.onnx -d CPU -d TEMPLATE --json           # every value, for programs
"""
_TOP = 20
_MEMORY = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    parser.add_argument(
        "-d",
        "--device",
        metavar="SIDE",
        action="append",
        default=[],
        help="twice: a device, and settings KEY=VALUE after it, in one word of the shell",
    )
    add_config(parser)
    add_extension(parser)
    add_inputs(parser)
    parser.add_argument(
        "--memory", metavar="MB", type=positive, default=_MEMORY,
        help=f"the most memory for values of both sides at a time (default: {_MEMORY})",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", metavar="X", type=amount, default=1.0, help="multiplies what rounding may explain (default: 1)"
    )
    parser.add_argument(
        "--top", metavar="N", type=positive, default=_TOP, help=f"how many values to print (default: {_TOP})"
    )
    parser.add_argument("--html", metavar="FILE", help="write a report with a picture to this file")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from engine.blob import is_blob
    from engine.cli.diff import diff_page, find_difference, open_side
    from engine.cli.diff.report import HEADER, RIGHT, describe, node_rows, shown_nodes, verdict
    from engine.cli.networks import make_core, port_inputs, read_shaped, require_folder
    from engine.cli.terminal import progress_bar, show_table
    from engine.files import write_file
    from engine.runtime import Port

    if len(args.device) != 2:
        raise UsageError(f"-d is given {len(args.device)} times; give it twice: the side to examine, and the reference")
    if args.html:
        require_folder(args.html)
    if is_blob(args.model):
        raise UsageError(f"{args.model} is a blob, whose values inside are not known; pass the model")
    core = make_core(args)
    examined, reference = (open_side(core, words, dict(args.config)) for words in args.device)
    model = read_shaped(core, args.model, args)
    inputs = port_inputs([Port.of(parameter) for parameter in model.parameters], args)
    with progress_bar() as progress:
        found = find_difference(
            model, examined, reference, inputs, memory_bytes=args.memory * 1_000_000, factor=args.tolerance,
            progress=progress,
        )  # fmt: skip
    if args.html:
        content = diff_page(found, f"{model.name}: {found.labels[0]} against {found.labels[1]}").encode()
        write_file(args.html, content)
    if args.json:
        print_json(describe(found))
        if args.html:
            say(f"wrote {args.html}", to_stderr=True)
        return 1 if found.differs else 0
    for line in verdict(found):
        say(line)
    for problem in found.problems:
        say(problem)
    if found.skipped:
        say(f"{found.skipped} of {found.skipped + len(found.nodes)} values were not compared: they do not fit")
    say()
    show_table(node_rows(shown_nodes(found, args.top)), HEADER, RIGHT)
    if args.html:
        say(f"wrote {args.html}")
    return 1 if found.differs else 0
