"""`engine benchmark`: latency and throughput of a network, alone or beside others."""

from __future__ import annotations

import argparse
import shlex
import time
from typing import TYPE_CHECKING, Any, Final

from engine.cli.benchmark_text import print_figures, print_more, print_series, print_set_up
from engine.cli.options import (
    MODEL_OR_BLOB,
    UsageError,
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
from engine.cli.output import json_text, print_json, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.cli.benchmark import Series, Subject
    from engine.ir import Model
    from engine.runtime import Port

SUMMARY = "measure latency and throughput, alone or beside other devices, settings and models"
DESCRIPTION = """\
Run inferences for a given time or number, and print the minimum, median, 90th and 99th percentile and maximum latency,
and the throughput. Without -n, the device recommends the number of requests in flight; with -n 0, inferences run one
after the other in the calling thread. Ctrl-C ends the measurement with the results until then, and exit code 130.

--compare measures several subjects in blocks that alternate within one run, each in a process of its own that loads the
model anew, and prints the ratio of their times with the 95 % confidence interval. The verdict is "faster" or "slower"
if the interval lies on one side of 1 and the difference is at least 1 %, else "level"; "undecided" with fewer than six
rounds. Without -n, inferences of a comparison run one after the other. An earlier result did not alternate with this
run, so only differences of 5 % count; a result of another machine, or of other inputs, is refused.

With --generate, the model is a language model with keys and values of past tokens, as for `engine generate`: the time
to the first token and the time for each later one are printed.
"""
EXAMPLES = """\
engine benchmark model.onnx -d TEMPLATE         # 5 seconds, the device's choice of requests
engine benchmark model.onnx -d TEMPLATE -n 0    # one after the other: the lowest latency
engine benchmark model.blob -n 8 -t 30          # 30 seconds, 8 requests in flight
engine benchmark model.blob --count 100 --json  # 100 inferences, the result for programs
engine benchmark model.onnx -d CPU --preprocess 'x=input(u8, NHWC).scale(255)'  # with the steps of the application
engine benchmark model.onnx -d CPU --hint throughput --streams 2 --threads 2  # settings by their short names
engine benchmark model.onnx -d CPU -n 0 --cores 0,1 --pin  # on these cores, each thread fixed to one
engine benchmark model.onnx -d CPU -i x=cat.png --histogram  # an image as the input, and how latencies spread
engine benchmark model.onnx -d CPU --layers     # the time of each layer, and its share of the peak
engine benchmark model.onnx -d CPU --compare ONNXRUNTIME --compare OPENVINO  # beside other runtimes
engine benchmark model.onnx -d CPU --compare OPENCL --compare "CPU INFERENCE_NUM_THREADS=1"  # beside other settings
engine benchmark model.onnx -d CPU --compare model.int8.onnx  # beside another model
engine benchmark model.onnx -d CPU --json -o before.json  # keep the result ..
engine benchmark model.onnx -d CPU --compare before.json  # .. and compare with it later
engine benchmark model.onnx -d CPU --layers --html report.html  # a page with plots
engine benchmark decoder.onnx -d CPU --generate 32,512  # tokens of a language model, after prompts of these lengths
"""
_SECONDS: Final = 5.0
_ROUNDS: Final = 9
_REST: Final = 0.2
_TOP: Final = 20
_INTERRUPTED: Final = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE", help=MODEL_OR_BLOB)
    add_device(parser)
    add_config(parser)
    parser.add_argument("--hint", choices=("latency", "throughput"), help="the same as -c PERFORMANCE_HINT=..")
    parser.add_argument("--streams", metavar="N", type=count, help="the same as -c NUM_STREAMS=N")
    parser.add_argument("--threads", metavar="N", type=count, help="the same as -c INFERENCE_NUM_THREADS=N")
    parser.add_argument(
        "--cores", metavar="N,..", type=core_list, default=[], help="run on these logical cores only, such as 0,1"
    )
    parser.add_argument(
        "--pin", action="store_true", help="with --cores and -n 0: fix each computing thread to one of the cores"
    )
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
        help="start no inference after this time; in a comparison, the time of all blocks of each "
        f"(default: {_SECONDS:g}, or no limit with --count)",
    )
    parser.add_argument("--count", metavar="N", type=positive, help="the largest number of inferences to start")
    parser.add_argument(
        "--warm-up", metavar="N", type=count, default=1, help="warm-up inferences of each request (default: 1)"
    )
    parser.add_argument(
        "--compare",
        metavar="WHAT",
        action="append",
        default=[],
        help="also measure this: words that replace parts of the base: a device, KEY=VALUE (KEY= for the "
        "default), the file of a model or blob; or the .json file of an earlier result; may be given several times",
    )
    parser.add_argument(
        "--rounds",
        metavar="N",
        type=positive,
        default=_ROUNDS,
        help=f"blocks of each subject in a comparison (default: {_ROUNDS})",
    )
    parser.add_argument(
        "--rest",
        metavar="SECONDS",
        type=amount,
        default=_REST,
        help=f"the pause before each of these blocks (default: {_REST})",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="in a comparison, one process per subject for all blocks: for models that take long to load; the interval "
        "then lacks what differs between processes, such as kernels that are chosen by measurement",
    )
    parser.add_argument("--histogram", action="store_true", help="print how the latencies are distributed")
    parser.add_argument(
        "--layers",
        metavar="N",
        nargs="?",
        type=count,
        const=_TOP,
        help="print the N layers that take longest, 0 for all: time, share, kernel, operations per second, share of "
        f"the peak of a large matrix product on this device, and bytes read and written (default: {_TOP})",
    )
    parser.add_argument(
        "--generate",
        metavar="LENGTHS",
        type=lengths,
        help="generate tokens after prompts of these lengths, such as 32,512",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the JSON object to this file")
    parser.add_argument("--html", metavar="FILE", help="write a report with plots to this file")
    add_json(parser)


def core_list(text: str) -> list[int]:
    """Parse the numbers of cores, such as `0,1`."""
    try:
        return list(dict.fromkeys(count(part) for part in text.split(",")))
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"expected numbers of cores such as 0,1, got {text!r}") from None


def lengths(text: str) -> list[int]:
    """Parse the lengths of prompts, such as `32,512`."""
    try:
        return [positive(part) for part in text.split(",")]
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"expected lengths of prompts such as 32,512, got {text!r}") from None


def run(args: argparse.Namespace) -> int:
    from engine.cli.benchmark import read_earlier
    from engine.cli.networks import require_folder

    _check_options(args)
    for path in filter(None, (args.output, args.html)):
        require_folder(path)
    for path in _earlier(args):
        read_earlier(path)
    if args.generate is not None:
        return _generate(args)
    others = [words for words in args.compare if not words.endswith(".json")]
    document = _measure_all(args, others) if others else _measure_one(args)
    _write(args, document)
    if args.json:
        print_json(document)
    elif others:
        print_figures(document)
    if not args.json:
        print_more(args, document)
    if document["interrupted"]:
        say("engine benchmark: interrupted; these are the results until then", to_stderr=True)
        return _INTERRUPTED
    return 0


def _check_options(args: argparse.Namespace) -> None:
    if args.pin and (not args.cores or args.requests != 0 or args.compare):
        raise UsageError("--pin needs --cores and -n 0, and does not go with --compare")
    given = ("compare", "html", "output", "layers", "histogram", "cores")
    if args.generate is not None and (
        wrong := [name for name in given if getattr(args, name) not in (None, [], False)]
    ):
        raise UsageError(f"--generate measures tokens; it does not go with --{wrong[0]}")
    short = {"PERFORMANCE_HINT": args.hint and args.hint.upper(), "NUM_STREAMS": args.streams,
             "INFERENCE_NUM_THREADS": args.threads}  # fmt: skip
    for key, value in short.items():
        if value is not None:
            if key in dict(args.config):
                raise UsageError(f"{key} is given twice: with -c, and by its short option")
            args.config.append((key, str(value)))


def _subject(args: argparse.Namespace) -> Subject:
    from engine.cli.benchmark import Subject

    return Subject(
        args.model, args.device, dict(args.config), shapes=dict(args.shape), extensions=tuple(args.extension),
        trusted_keys=tuple(args.trusted_key), require_signature=args.require_signature, release=args.release,
        decrypt=args.decrypt, weights_from=args.weights_from, preprocess=tuple(each.text for each in args.preprocess),
    )  # fmt: skip


def _measure_one(args: argparse.Namespace) -> dict[str, Any]:
    """Measure in this process, and print each result as soon as it is known."""
    from engine.cli.benchmark import measure_alone, pin_new_threads, restrict_to_cores, thread_ids
    from engine.cli.networks import make_core, network_inputs, open_network
    from engine.cli.terminal import progress_bar
    from engine.runtime.benchmark import Meter, wait_for_choice

    before = thread_ids()
    if args.cores:
        restrict_to_cores(args.cores)
    opened = open_network(make_core(args), args)
    network = opened.network
    args.values = inputs = network_inputs(network, args)
    start = time.perf_counter()
    network(inputs)
    first = time.perf_counter() - start
    wait_for_choice(network)
    set_up = {
        "file": args.model,
        "network": network.name,
        "device": network.get_metric("EXECUTION_DEVICES"),
        "config": dict(network.config.explicit),
        "read_s": opened.read_seconds,
        "compile_s": opened.compile_seconds,
        "first_inference_s": first,
    }
    if not args.json:
        print_set_up(set_up)
    requests = network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") if args.requests is None else args.requests
    seconds = _SECONDS if args.time is None and args.count is None else args.time
    about = _circumstances(args, inputs, network.inputs, requests)
    with progress_bar() as progress:
        progress("warm up", 0.0)
        meter = Meter(network, inputs, requests=requests, warm_up=args.warm_up)
        pinned = pin_new_threads(before, args.cores) if args.pin else 0
        series = measure_alone(meter, requests, seconds, args.count, progress)
    if not args.json:
        print_series(series)
    return _complete(args, set_up, series, about) | {"pinned_threads": pinned}


def _measure_all(args: argparse.Namespace, others: list[str]) -> dict[str, Any]:
    """Measure in alternating blocks; the first is what the arguments say, and the others replace parts of it."""
    from engine.cli.benchmark import Procedure, changed, compare_subjects, describe_compared
    from engine.cli.networks import make_core, port_inputs, require_device
    from engine.cli.terminal import progress_bar

    base = _subject(args)
    core = make_core(args)
    if not _is_blob(args.model):
        require_device(core, args)
    subjects = [base, *(changed(base, words) for words in others)]
    ports = _ports(args)
    args.values = inputs = port_inputs(ports, args)
    seconds = _SECONDS if args.time is None and args.count is None else args.time
    procedure = Procedure(
        rounds=args.rounds,
        block_seconds=None if seconds is None else seconds / args.rounds,
        block_count=None if args.count is None else max(1, -(-args.count // args.rounds)),
        rest_seconds=args.rest,
        warm_up=args.warm_up,
        requests=args.requests or 0,
        cores=tuple(args.cores),
        is_fresh=not args.keep,
    )
    circumstances = _circumstances(args, inputs, ports, procedure.requests)
    with progress_bar() as progress:
        found = compare_subjects(subjects, inputs, procedure, progress)
    about = found[0].about
    set_up = {
        "file": args.model,
        "network": about["name"],
        **{key: about[key] for key in ("device", "config", "read_s", "compile_s", "first_inference_s")},
        "peak_bytes": found[0].peak_bytes,
    }
    document = _complete(args, set_up, found[0].series, circumstances)
    for each in found[1:]:
        document["versions"] |= each.about["versions"]
    document["compared"] = [describe_compared(each) for each in found[1:]] + document["compared"]
    return document


def _is_blob(path: str) -> bool:
    from engine.blob import is_blob

    return is_blob(path)


def _ports(args: argparse.Namespace) -> list[Port]:
    """The inputs of the model or blob, without compiling it."""
    from engine.cli.networks import make_core, open_network, read_shaped
    from engine.runtime import Port

    core = make_core(args)
    if _is_blob(args.model):
        return list(open_network(core, args).network.inputs)
    return [Port.of(parameter) for parameter in read_shaped(core, args.model, args).parameters]


def _circumstances(
    args: argparse.Namespace, inputs: Mapping[str, Any], ports: Sequence[Port], requests: int
) -> dict[str, Any]:
    """The circumstances to repeat the measurement, as before it. Refuses earlier results that do not compare."""
    from engine.cli.benchmark import describe_circumstances, read_earlier, require_comparable
    from engine.cli.networks import input_sources

    found = describe_circumstances(
        _subject(args), inputs, input_sources(args.input, ports), command=shlex.join(["engine", *args.arguments]),
        seed=args.seed, cores=args.cores, warm_up=args.warm_up,
    )  # fmt: skip
    for path in _earlier(args):
        require_comparable(path, read_earlier(path), found | {"requests": requests})
    return found


def _earlier(args: argparse.Namespace) -> list[str]:
    return [words for words in args.compare if words.endswith(".json")]


def _complete(
    args: argparse.Namespace, set_up: dict[str, Any], series: Series, circumstances: dict[str, Any]
) -> dict[str, Any]:
    from engine.cli.benchmark import complete_document

    with_layers = args.layers is not None
    return complete_document(
        set_up, series, circumstances, _subject(args), args.values, earlier=_earlier(args), with_layers=with_layers
    )


def _write(args: argparse.Namespace, document: dict[str, Any]) -> None:
    from engine.cli.benchmark import benchmark_page
    from engine.files import write_file

    for path, text in ((args.output, json_text), (args.html, benchmark_page)):
        if path:
            write_file(path, text(document).encode())
            say(f"wrote {path}", to_stderr=args.json)


def _generate(args: argparse.Namespace) -> int:
    from engine.cli.networks import make_core, open_network
    from engine.generation import measure_generation
    from engine.passes import MakeStateful

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
