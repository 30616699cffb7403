"""`engine generate`: the tokens with which a language model continues a prompt."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from engine.tools.options import (
    MODEL_OR_BLOB,
    add_config,
    add_device,
    add_extension,
    add_json,
    add_trust,
    count,
    positive,
)
from engine.tools.output import print_json, say

if TYPE_CHECKING:
    from engine.ir import Model

SUMMARY = "continue tokens with a language model"
DESCRIPTION = """\
Continue a prompt, given as numbers of tokens or as text, and print what follows as soon as it is computed. The model
has the keys and values of past tokens as inputs and outputs (`past_key_values.0.key` and `present.0.key`, or similar),
which become variables, or it is a blob that `engine compile --stateful` wrote. By default, the likeliest token is
taken.
"""
EXAMPLES = """\
engine generate decoder.onnx -d CPU --prompt-ids 1,15043,3186             # the likeliest tokens
engine generate decoder.onnx -d CPU --prompt "Once upon a time"           # text, by tokenizer.json beside the model
engine generate decoder.blob --prompt-ids 1,15043 --max-tokens 99 --stop-ids 2  # up to token 2, or 99 tokens
engine generate decoder.onnx -d CPU --prompt-ids 1 --temperature 0.8 --seed 7  # drawn, the same for the same seed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="FILE", help=MODEL_OR_BLOB)
    add_device(parser)
    add_config(parser)
    add_trust(parser)
    add_extension(parser)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt-ids", metavar="IDS", type=ids, help="the tokens of the prompt, such as 1,15043,3186")
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt as text (needs the package tokenizers)")
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="the tokenizer of --prompt (default: tokenizer.json beside the model)"
    )
    parser.add_argument(
        "--max-tokens", metavar="N", type=positive, default=32, help="the most tokens to generate (default: 32)"
    )
    parser.add_argument("--stop-ids", metavar="IDS", type=ids, default=[], help="tokens that end the sequence")
    parser.add_argument(
        "--temperature", metavar="X", type=float, default=0.0, help="above 0: draw tokens (default: take the likeliest)"
    )
    parser.add_argument("--top-k", metavar="N", type=count, default=0, help="draw from the N likeliest tokens only")
    parser.add_argument(
        "--top-p", metavar="P", type=float, default=1.0, help="draw from the likeliest tokens that together reach P"
    )
    parser.add_argument(
        "--repetition-penalty", metavar="X", type=float, default=1.0, help="above 1: avoid tokens that occurred"
    )
    parser.add_argument("--seed", metavar="N", type=count, default=0, help="seed of drawn tokens (default: 0)")
    add_json(parser)


def ids(text: str) -> list[int]:
    """Parse the numbers of tokens, such as `1,15043`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers of tokens such as 1,15043, got {text!r}") from None


def run(args: argparse.Namespace) -> int:
    """Generate."""
    from engine.errors import PassError
    from engine.generation import Generator, Sampling, TextStream, read_tokenizer
    from engine.passes import LastPosition, MakeStateful
    from engine.tools.networks import make_core, open_network

    sampling = Sampling(args.repetition_penalty, args.temperature, args.top_k, args.top_p, args.seed)

    def change(model: Model) -> Model:
        MakeStateful().run_on_model(model)
        with contextlib.suppress(PassError):  # another form of the head: it is computed for all tokens of the prompt
            LastPosition().run_on_model(model)
        return model

    network = open_network(make_core(args), args, change).network
    generator = Generator(network, sampling, stop_tokens=args.stop_ids)
    prompt, text = args.prompt_ids, None
    if args.prompt is not None:
        tokenizer = read_tokenizer(args.tokenizer or Path(args.model).with_name("tokenizer.json"))
        prompt, text = tokenizer.encode(args.prompt).ids, TextStream(tokenizer)
    generator.append(prompt)
    tokens, pieces = [], []
    times = [time.perf_counter()]
    for token in generator.stream(args.max_tokens):
        times.append(time.perf_counter())
        tokens.append(token)
        pieces.append(f"{token} " if text is None else text.add(token))
        if not args.json:
            say(pieces[-1], end="", flush=True, lines=True)
    if text is not None:
        pieces.append(text.end())
    first, others = times[1] - times[0], (times[-1] - times[1]) / max(1, len(tokens) - 1)
    if args.json:
        found = {} if text is None else {"text": "".join(pieces)}
        print_json(found | {"tokens": tokens, "first_token_seconds": first, "seconds_per_token": others})
    else:
        say("" if text is None else pieces[-1], lines=True)
        say(f"{len(tokens)} tokens; the first after {first * 1e3:.1f} ms, then {others * 1e3:.1f} ms for each")
    return 0
