"""`engine compile`: a model, a device and a configuration in, a blob out."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from engine.drawing.table import byte_count
from engine.tools.options import UsageError, add_config, add_device, add_extension, add_json, add_preprocess, add_shape
from engine.tools.output import print_json, say
from engine.tools.weights import add_weights, as_json, check_weights, compressed

if TYPE_CHECKING:
    from engine.ir import Model
    from engine.passes import CompressedModel

SUMMARY = "compile a model for a device and write a blob"
DESCRIPTION = """\
Compile a model and write the compiled network to a blob file. `engine run`, `engine benchmark` and `Core.import_model`
load the blob without the model and without compiling again. The file is written atomically.
"""
EXAMPLES = """\
engine compile model.onnx -d TEMPLATE                     # write model.blob here
engine compile model.onnx -d TEMPLATE -o /srv/net.blob    # write it elsewhere
engine compile model.onnx -d TEMPLATE -c PERF_COUNT=true  # the configuration travels with the blob
engine compile model.onnx -d CPU --shape x=8,3,224,224    # for inputs of this shape only
engine compile model.onnx -d CPU --preprocess 'x=input(u8, NHWC).mean(127.5).scale(58)'  # takes bytes of images
engine compile model.onnx -d CPU --preprocess 'y=output().softmax().top_k(5)'  # gives the 5 best classes
engine compile model.onnx -d CPU --weights int4           # with weights of 4 bits
engine compile decoder.onnx -d CPU --stateful             # requests keep the keys and values of past tokens
engine compile model.onnx -d OPENCL --sign release.key    # signed, for hosts that trust the key
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    add_device(parser)
    add_config(parser)
    add_extension(parser)
    add_shape(parser)
    add_preprocess(parser)
    add_weights(parser, None)
    parser.add_argument(
        "--stateful",
        action="store_true",
        help="pairs of past and present values become variables, which requests keep between inferences",
    )
    parser.add_argument(
        "--last-position",
        action="store_true",
        help="a language model computes its logits for the last token of a prompt only",
    )
    parser.add_argument(
        "--sign", metavar="FILE", help="sign the blob with the key of this file, as `engine keygen` writes it"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the blob (default: the model's name with .blob, here)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compile and export."""
    from engine.blob import is_blob, read_signing_key
    from engine.passes import LastPosition, MakeStateful
    from engine.tools.networks import make_core, open_network, require_folder

    if is_blob(args.model):
        raise UsageError(f"{args.model} is already a blob; `engine inspect` shows its content")
    named_after = os.path.splitext(os.path.basename(args.model))[0]
    target = f"{named_after}.blob" if args.output is None else args.output
    if os.path.realpath(target) == os.path.realpath(args.model):
        raise UsageError(f"the blob would replace the model {args.model}; choose another -o FILE")
    require_folder(target)
    check_weights(args)
    key = None if args.sign is None else read_signing_key(args.sign)  # before anything is compiled
    reports: list[CompressedModel] = []

    def change(model: Model) -> Model:
        if args.stateful:
            MakeStateful().run_on_model(model)
        if args.last_position:
            LastPosition().run_on_model(model)
        if args.weights is None:
            return model
        reports.append(compressed(model, args))
        return reports[0].model

    opened = open_network(make_core(args), args, change)
    opened.network.export_model(target, sign=key)
    size = os.path.getsize(target)
    device = opened.network.plugin.name
    if args.json:
        facts = {"file": str(target), "bytes": size, "device": device, "compile_seconds": opened.compile_seconds}
        facts |= {"signed_by": key.key_id} if key is not None else {}
        print_json({**facts, **({"weights": as_json(reports[0])} if reports else {})})
    else:
        for report in reports:
            say(str(report), lines=True)
        signed = f", signed by key {key.key_id}" if key is not None else ""
        say(f"wrote {target}: {byte_count(size)}, for {device}, compiled in {opened.compile_seconds:.2f} s{signed}")
    return 0
