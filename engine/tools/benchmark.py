"""`engine benchmark`: latency and throughput of a network."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from engine.tools.options import (
    MODEL_OR_BLOB,
    add_config,
    add_device,
    add_extension,
    add_inputs,
    add_json,
    add_trust,
    amount,
    count,
    positive,
)
from engine.tools.output import print_json, say

if TYPE_CHECKING:
    from engine.ir import Model
    from engine.plugin_api import ExecutableNetwork
    from engine.runtime.benchmark import Measurement
    from engine.tools.networks import OpenedNetwork

SUMMARY = "measure latency and throughput"
DESCRIPTION = """\
Run inferences for a given time or number, and print the minimum, median, 90th and 99th percentile and maximum latency,
and the throughput. Without -n, the number of requests in flight is the one that the device recommends; with -n 0,
inferences run one after the other in the calling thread. With --generate, the model is a language model with keys and
values of past tokens, as for `engine generate`: printed are the time to the first token, and for each one after it.
"""
EXAMPLES = """\
engine benchmark model.onnx -d TEMPLATE         # 5 seconds, the device's choice of requests
engine benchmark model.onnx -d TEMPLATE -n 0    # one after the other: the lowest latency
engine benchmark model.blob -n 8 -t 30          # 30 seconds, 8 requests in flight
engine benchmark model.blob --count 100 --json  # 100 inferences, the result for programs
engine benchmark model.onnx -d CPU --preprocess 'x=input(u8, NHWC).scale(255)'  # with the steps of the application
engine benchmark decoder.onnx -d CPU --generate 32,512  # tokens of a language model, after prompts of these lengths
"""
_SECONDS = 5.0
_PERCENTILES = {"min": 0, "median": 50, "p90": 90, "p99": 99, "max": 100}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="FILE", help=MODEL_OR_BLOB)
    add_device(parser)
    add_config(parser)
    add_trust(parser)
    add_extension(parser)
    add_inputs(parser)
    parser.add_argument(
        "-n",
        "--requests",
        metavar="N",
        type=count,
        help="requests in flight; 0: run in the calling thread (default: OPTIMAL_NUMBER_OF_INFER_REQUESTS)",
    )
    parser.add_argument(
        "-t",
        "--time",
        metavar="SECONDS",
        type=amount,
        help=f"start no inference after this time (default: {_SECONDS:g}, or no limit with --count)",
    )
    parser.add_argument("--count", metavar="N", type=positive, help="the largest number of inferences to start")
    parser.add_argument(
        "--warm-up", metavar="N", type=count, default=1, help="warm-up inferences of each request (default: 1)"
    )
    parser.add_argument(
        "--generate",
        metavar="LENGTHS",
        type=lengths,
        help="generate tokens after prompts of these lengths, such as 32,512",
    )
    add_json(parser)


def lengths(text: str) -> list[int]:
    """Parse the lengths of prompts, such as `32,512`."""
    try:
        return [positive(part) for part in text.split(",")]
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"expected lengths of prompts such as 32,512, got {text!r}") from None


def run(args: argparse.Namespace) -> int:
    """Measure a network."""
    from engine.runtime.benchmark import measure, wait_for_choice
    from engine.tools.networks import make_core, network_inputs, open_network

    if args.generate is not None:
        return _generate(args)
    opened = open_network(make_core(args), args)
    network = opened.network
    inputs = network_inputs(network, args)
    start = time.perf_counter()
    network(inputs)
    first = time.perf_counter() - start
    wait_for_choice(network)
    set_up = _describe_set_up(args, opened, first)
    if not args.json:
        _print_set_up(set_up)
    requests = network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") if args.requests is None else args.requests
    seconds = _SECONDS if args.time is None and args.count is None else args.time
    found = measure(network, inputs, requests=requests, seconds=seconds, count=args.count, warm_up=args.warm_up)
    if args.json:
        print_json(set_up | _describe(found))
    else:
        _print(found)
    return 0


def _generate(args: argparse.Namespace) -> int:
    from engine.generation import measure_generation
    from engine.passes import MakeStateful
    from engine.tools.networks import make_core, open_network

    def change(model: Model) -> Model:
        MakeStateful().run_on_model(model)
        return model

    opened = open_network(make_core(args), args, change)
    found = measure_generation(opened.network, args.generate)
    if args.json:
        rows = [
            {"prompt": each.context, "first_token_s": each.first, "token_s": each.each, "state_bytes": each.state_bytes}
            for each in found
        ]
        print_json({"file": args.model, "compile_s": opened.compile_seconds, "generation": rows})
        return 0
    say(f"network     `{opened.network.name}`; compile or import {opened.compile_seconds:.3f} s")
    for each in found:
        megabytes = each.state_bytes / 1e6
        say(
            f"prompt {each.context:5}  first token {each.first * 1e3:.1f} ms, then {each.each * 1e3:.2f} ms for each; "
            f"keys and values {megabytes:.1f} MB"
        )
    return 0


def _describe_set_up(args: argparse.Namespace, opened: OpenedNetwork, first_seconds: float) -> dict[str, Any]:
    network: ExecutableNetwork = opened.network
    return {
        "file": args.model,
        "network": network.name,
        "device": network.get_metric("EXECUTION_DEVICES"),
        "config": dict(network.config.explicit),
        "read_s": opened.read_seconds,
        "compile_s": opened.compile_seconds,
        "first_inference_s": first_seconds,
    }


def _print_set_up(set_up: dict[str, Any]) -> None:
    say(f"network     `{set_up['network']}` on {', '.join(set_up['device'])}")
    say(f"set-up      read {set_up['read_s']:.3f} s, compile or import {set_up['compile_s']:.3f} s, ", end="")
    # The measurement takes long; the output so far shows that it has started.
    say(f"first inference {set_up['first_inference_s']:.3f} s", flush=True)


def _describe(found: Measurement) -> dict[str, Any]:
    return {
        "requests": found.requests,
        "inferences": found.count,
        "duration_s": found.seconds,
        "latency_ms": {name: found.latency(percent) for name, percent in _PERCENTILES.items()},
        "throughput_per_s": found.throughput,
    }


def _print(found: Measurement) -> None:
    in_flight = f"{found.requests} in flight" if found.requests else "one after the other"
    latency = ", ".join(f"{name} {found.latency(percent):.3f}" for name, percent in _PERCENTILES.items())
    say(f"inferences  {found.count} in {found.seconds:.3f} s, {in_flight}")
    say(f"latency     {latency} ms")
    say(f"throughput  {found.throughput:.3f} inferences/s")
