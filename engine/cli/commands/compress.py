"""`engine compress`: a model in, the same model with weights of few bits out."""

from __future__ import annotations

import argparse
import os

from engine.cli.options import UsageError, add_extension, add_json
from engine.cli.output import print_json, say
from engine.cli.weights import add_weights, as_json, compressed
from engine.drawing.table import byte_count

SUMMARY = "compress the weights of a model to 4 or 8 bits"
DESCRIPTION = """\
Compress the constant matrices of MatMul and Gemm to integers of 4 or 8 bits with a scale for each group of elements,
and write an ONNX model that any runtime of opset 21 computes. No data is needed. For each layer, the error of the
matrix, relative to its norm, and the largest error of an element are printed.
"""
EXAMPLES = """\
engine compress model.onnx                                    # write model.int4.onnx here
engine compress model.onnx --weights int8 --weights-group 0   # 8 bits, with one scale per column
engine compress model.onnx --weights-group 32 --asymmetric    # more accurate, and a little larger
engine compress model.onnx --exclude '*lm_head*' -o out.onnx  # all layers but one
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    add_weights(parser, "int4")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the model to write (default: the model's name with .int4.onnx)"
    )
    add_extension(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from engine.blob import is_blob
    from engine.cli.networks import make_core, require_folder
    from engine.onnx import write_model

    if is_blob(args.model):
        raise UsageError(f"{args.model} is a blob; compress the model, and compile the result")
    named_after = os.path.splitext(os.path.basename(args.model))[0]
    target = f"{named_after}.{args.weights}.onnx" if args.output is None else args.output
    if os.path.realpath(target) == os.path.realpath(args.model):
        raise UsageError(f"the compressed model would replace the model {args.model}; choose another -o FILE")
    require_folder(target)
    found = compressed(make_core(args).read_model(args.model), args)
    if not found.layers:
        why = "".join(f"\n  {layer.name}: {layer.reason}" for layer in found.skipped)
        raise UsageError(f"no matrix of {args.model} can be compressed, so nothing was written{why and ':'}{why}")
    write_model(found.model, target)
    size = os.path.getsize(target)
    if args.json:
        print_json({"file": str(target), "bytes": size, **as_json(found)})
    else:
        say(str(found), lines=True)
        say(f"wrote {target}: {byte_count(size)}")
    return 0
