"""`engine compare`: a quantized model against the original one, layer by layer."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from engine.cli.options import (
    UsageError,
    add_config,
    add_device,
    add_extension,
    add_inputs,
    add_json,
    amount,
    positive,
)
from engine.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from engine.core import Core
    from engine.ir import Model

SUMMARY = "compare a quantized model with the original one, layer by layer"
DESCRIPTION = """\
Run two models on the same inputs, with the values between their layers as outputs, and print how far the second model's
values are from the first model's: the ratio of signal to quantization noise in dB (about 6 for each bit that is right),
and the largest error, worst layer first. Values are matched by name, which the tools of onnxruntime and nncf keep; a
value is taken as the next layer reads it, after quantization and dequantization. The exit code is 1 if a layer is below
--min-db. Random inputs say little about the accuracy of a model: use real ones. `engine diff` compares two devices on
one model.
"""
EXAMPLES = """\
engine compare model.onnx model.int8.onnx -d CPU -i x=image.npy               # the 20 worst layers
engine compare model.onnx model.int8.onnx -d CPU -i x=image.npy --min-db 10  # exit code 1 if a layer is below 10 dB
engine compare model.onnx model.int8.onnx -d TEMPLATE -i inputs.npz       # computed exactly as the specification says
engine compare model.onnx model.int8.onnx -d CPU -i inputs.npz --json     # every layer, for programs
"""
_TOP = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the original ONNX model")
    parser.add_argument("quantized", metavar="QUANTIZED", help="the quantized ONNX model")
    add_device(parser)
    add_config(parser)
    add_extension(parser)
    add_inputs(parser)
    parser.add_argument(
        "--top", metavar="N", type=positive, default=_TOP, help=f"how many layers to print (default: {_TOP})"
    )
    parser.add_argument(
        "--min-db", metavar="X", type=amount, help="the smallest ratio of signal to noise that a layer may have"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from engine.cli.networks import make_core, read_shaped
    from engine.passes import compare_layers

    core = make_core(args)
    original, quantized = read_shaped(core, args.model, args), read_shaped(core, args.quantized, args)
    run_model, inputs = _runner(core, original, args)
    if missing := {p.friendly_name for p in quantized.parameters} - inputs.keys():
        raise UsageError(f"{args.quantized} has an input {min(missing)!r}, which {args.model} does not have")
    layers = compare_layers(original, quantized, inputs, run_model)
    is_close = args.min_db is None or all(layer.signal_to_noise >= args.min_db for layer in layers)
    if args.json:
        rows = [
            {
                "name": layer.name,
                "op": layer.op_type,
                "signal_to_noise_db": layer.signal_to_noise,
                "largest_error": layer.largest_error,
                "largest_value": layer.largest_value,
            }
            for layer in layers
        ]
        print_json({"layers": rows, "close": is_close if args.min_db is not None else None})
        return 0 if is_close else 1
    print_table(
        [
            (layer.name, layer.op_type, _decibels(layer.signal_to_noise), f"{layer.largest_error:.3g}",
             f"{layer.largest_value:.3g}")
            for layer in layers[: args.top]
        ],
        ("VALUE", "OPERATOR", "DB", "LARGEST ERROR", "LARGEST VALUE"),
    )  # fmt: skip
    say(f"\n{len(layers)} layers compared, the worst {min(args.top, len(layers))} above")
    return 0 if is_close else 1


def _runner(core: Core, original: Model, args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """A function that runs a model on the device of the arguments, and the inputs."""
    from engine.cli.networks import network_inputs, parse_config, require_device

    device = require_device(core, args)
    config = parse_config(core, device, args.config)
    inputs = network_inputs(core.compile_model(original, device, config), args)
    return lambda model, feed: core.compile_model(model, device, config)(feed), inputs


def _decibels(ratio: float) -> str:
    return f"{ratio:.1f}" if math.isfinite(ratio) else "equal" if ratio > 0 else str(ratio)
