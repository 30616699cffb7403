"""`engine run`: one inference, whose outputs are shown, saved or compared."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.options import (
    MODEL_OR_BLOB,
    UsageError,
    add_config,
    add_device,
    add_extension,
    add_inputs,
    add_json,
    add_tolerances,
    add_trust,
    device_name,
)
from engine.cli.output import comparison_as_json, print_comparisons, print_json, say

if TYPE_CHECKING:
    from engine.core import Core
    from engine.plugin_api import ExecutableNetwork
    from engine.runtime.comparison import Comparison

SUMMARY = "run a model once; show, save or compare its outputs"
DESCRIPTION = """\
Run one inference and print a line for each output; with PERF_COUNT=true, also print how long each stage and node took.
With a reference, compare each of its outputs: numbers are close if |actual - expected| <= atol + rtol * |expected|,
integers if they differ by at most atol. The exit code is 1 if any element differs by more.
"""
EXAMPLES = """\
engine run model.onnx -d TEMPLATE                               # random inputs, the same for the same --seed
engine run model.onnx -d TEMPLATE --shape x=1,3,224,224         # a random input whose shape is not fixed
engine run model.onnx -d TEMPLATE -i inputs.npz -o out.npz      # inputs by name, outputs by name
engine run model.onnx -d TEMPLATE -i x=x.npy -o folder          # one input, outputs as folder/output_0.pb and so on
engine run model.onnx -d TEMPLATE -i test_data_set_0 --reference test_data_set_0  # ONNX test data
engine run model.onnx -d CPU --reference-device TEMPLATE --rtol 1e-4  # one device against another
engine run model.onnx -d CPU -i x=photo.npy --preprocess 'x=input(u8, HWC).resize().scale(255)'  # of any size
engine run model.blob -c PERF_COUNT=true                        # a compiled network, and what took its time
engine run model.blob --trusted-key release.key.pub --require-signature  # only if this key has signed it
engine run model.blob --decrypt secret.key                      # encrypted by `engine compile --encrypt`
"""


_MAX_NODES = 20
"""The most nodes in the table of a profile."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE", help=MODEL_OR_BLOB)
    add_device(parser)
    add_config(parser)
    add_trust(parser)
    add_extension(parser)
    add_inputs(parser)
    parser.add_argument(
        "-o", "--output", metavar="PATH", help="save the outputs: an .npz archive, or a folder of .pb files"
    )
    expected = parser.add_mutually_exclusive_group()
    expected.add_argument(
        "--reference",
        metavar="[NAME=]FILE",
        action="append",
        default=[],
        help="expected outputs, in the forms of --input; may be given several times",
    )
    expected.add_argument(
        "--reference-device", metavar="DEVICE", type=device_name, help="compare with the outputs of this device"
    )
    add_tolerances(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from engine.cli.networks import make_core, network_inputs, open_network, require_folder
    from engine.runtime.comparison import compare_results
    from engine.values.files import write_values

    if args.output is not None:
        require_folder(args.output)
        if Path(args.output).suffix not in ("", ".npz"):
            raise UsageError(
                f"expected an .npz archive or a folder without a suffix for the outputs, got {args.output}"
            )
    core = make_core(args)
    network = open_network(core, args, may_be_cached=True).network
    inputs = network_inputs(network, args)
    expected = _expected(core, network, inputs, args)
    request = network.create_infer_request() if network.is_profiling else None
    result = network(inputs) if request is None else request.infer(inputs)
    comparisons = compare_results(result, expected, rtol=args.rtol, atol=args.atol)
    files = []
    if args.output is not None:
        files = write_values(args.output, result, {port.name: port.type for port in network.outputs}, "output")
    is_close = all(comparison.is_close for comparison in comparisons)
    if args.json:
        print_json(
            {
                "network": network.name,
                "device": network.plugin.name,
                "outputs": [{"name": name, **_described(value)} for name, value in result.items()],
                "comparison": [comparison_as_json(c) for c in comparisons],
                "close": is_close if comparisons else None,
                "files": [str(file) for file in files],
            }
        )
    else:
        _print(network, result, comparisons)
        for file in files:
            say(f"wrote {file}")
        if request is not None:
            say("\ntimes of the first inference, which are longer than later ones'; `engine profile` has these")
            say(request.profiling_info.table(_MAX_NODES), lines=True)
    return 0 if is_close else 1


def _expected(
    core: Core, network: ExecutableNetwork, inputs: Mapping[str, Any], args: argparse.Namespace
) -> Mapping[str, Any]:
    """The expected outputs; empty without a reference."""
    from engine.blob import is_blob
    from engine.cli.networks import given_values, read_shaped

    if args.reference_device is None:
        return given_values(args.reference, network.outputs, "output")
    if is_blob(args.model):
        raise UsageError("--reference-device needs the model: a blob runs only on its own device")
    return core.compile_model(read_shaped(core, args.model, args), args.reference_device)(inputs)


def _print(network: ExecutableNetwork, result: Mapping[str, Any], comparisons: list[Comparison]) -> None:
    say(f"network `{network.name}` on {', '.join(network.get_metric('EXECUTION_DEVICES'))}")
    for name, value in result.items():
        described = _described(value)
        numbers = ", ".join(f"{key} {described[key]:.6g}" for key in ("min", "max", "mean") if key in described)
        odd = f", {described['not_finite']} not finite" if described.get("not_finite") else ""
        say(f"  {name}: {described['type']}{'  ' if numbers else ''}{numbers}{odd}")
    if not comparisons:
        return
    say()
    print_comparisons([("", comparison) for comparison in comparisons])


def _described(value: Any) -> dict[str, Any]:
    """Type and shape of a value, and the range of its finite numbers."""
    import numpy as np

    from engine.ir import ElementType

    if not isinstance(value, np.ndarray):
        kind = "absent" if value is None else f"{len(value)} elements" if isinstance(value, list) else "map"
        return {"type": kind}
    element_type = ElementType.from_numpy(value.dtype)
    described: dict[str, Any] = {"type": f"{element_type}{list(value.shape)}".replace(" ", "")}
    if element_type.is_integral or element_type.is_real:
        numbers = value.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        described["not_finite"] = int(numbers.size - finite.size)
        if finite.size:
            described |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
    return described
