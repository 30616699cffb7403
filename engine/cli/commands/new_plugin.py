"""`engine new-plugin`: the package of a new device, ready to be installed."""

from __future__ import annotations

import argparse
import os

from engine.cli.output import say

SUMMARY = "write the package of a plugin for a new device"
DESCRIPTION = """\
Write an installable package with a plugin for a device, with tests. As written, it computes its operators in numpy,
passes every suite and scores full marks in `engine conformance`; replace its kernels by your device's. With --runtime,
it passes whole models to a runtime that reads ONNX; replace the sample by yours, in one file. The folder must be empty
or must not exist. Needs the extra `plugin`: pip install "engine-sdk[plugin]".
"""
EXAMPLES = """\
engine new-plugin ACME                          # ./engine-plugin-acme, with a few operators
engine new-plugin ACME --ops Conv,Relu --dir d  # these operators, in the folder d
engine new-plugin ACME --async --export         # host and device stages overlap; networks are exported
engine new-plugin ACME --native                 # with a kernel in C++
engine new-plugin ACME --runtime                # a runtime that reads ONNX models
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name of the device, in upper case, such as ACME")
    parser.add_argument(
        "--ops",
        metavar="OP,OP",
        help="the operators of ONNX that the device runs (default: Add,Conv,Gemm,MatMul,Mul,Relu)",
    )
    parser.add_argument(
        "--async", dest="is_async", action="store_true", help="host and device stages run on executors of their own"
    )
    parser.add_argument("--export", dest="has_export", action="store_true", help="networks are exported and imported")
    parser.add_argument(
        "--native", dest="is_native", action="store_true", help="the matrix product is a kernel in C++, with pybind11"
    )
    parser.add_argument(
        "--runtime",
        dest="is_runtime",
        action="store_true",
        help="the device is a runtime that reads ONNX: no operators and kernels of its own; networks are exported",
    )
    parser.add_argument("--dir", metavar="FOLDER", help="the folder to write to (default: engine-plugin-NAME)")


def run(args: argparse.Namespace) -> int:
    from engine.testing.scaffold import DEFAULT_OPERATORS, PluginPlan, new_plugin

    operators = DEFAULT_OPERATORS if args.ops is None else tuple(filter(None, map(str.strip, args.ops.split(","))))
    plan = PluginPlan(args.name, operators, args.is_async, args.has_export, args.is_native, args.is_runtime)
    folder = new_plugin(plan, plan.distribution if args.dir is None else args.dir)
    shown = os.path.relpath(folder)
    say(f"wrote the plugin of {plan.device} to {shown}; next:")
    say(f'  pip install -e "{shown}[test]"')
    say("  engine devices")
    say(f"  pytest {shown}")
    return 0
