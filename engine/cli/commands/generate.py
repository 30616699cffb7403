"""`engine generate`: the tokens with which a language model continues a prompt."""

from __future__ import annotations

import argparse
import contextlib
import os.path
import time
from pathlib import Path
from typing import TYPE_CHECKING

from engine.cli.options import (
    MODEL_OR_BLOB,
    UsageError,
    add_config,
    add_device,
    add_extension,
    add_json,
    add_trust,
    count,
    positive,
)
from engine.cli.output import print_json, say

if TYPE_CHECKING:
    from engine.generation import BeamSearch, EncoderDecoderFolder, GenaiFolder, Generator, Sampling, TextStream
    from engine.ir import Model
    from engine.plugin_api import ExecutableNetwork

SUMMARY = "continue tokens with a language model"
DESCRIPTION = """\
Continue a prompt, given as numbers of tokens or as text, and print what follows as soon as it is computed. The model
has the keys and values of past tokens as inputs and outputs (`past_key_values.0.key` and `present.0.key`, or similar),
which become variables, or it is a blob that `engine compile --stateful` wrote, or a folder that onnxruntime-genai's
builder wrote. By default, the likeliest token is taken; the configuration of such a folder can say otherwise, and names
the tokens that end the sequence.

A folder may also have an encoder and a decoder, as the builder writes Whisper and Optimum writes T5. An encoder of text
reads the prompt; for others, --features has what it reads, and the prompt is that of the decoder.
"""
EXAMPLES = """\
engine generate decoder.onnx -d CPU --prompt-ids 1,15043,3186             # the likeliest tokens
engine generate decoder.onnx -d CPU --prompt "Once upon a time"           # text, by tokenizer.json beside the model
engine generate models/phi -d CPU --prompt "Once upon a time"             # a folder with genai_config.json
engine generate decoder.blob --prompt-ids 1,15043 --max-tokens 99 --stop-ids 2  # up to token 2, or 99 tokens
engine generate decoder.onnx -d CPU --prompt-ids 1 --temperature 0.8 --seed 7  # drawn, the same for the same seed
engine generate decoder.onnx -d CPU --prompt "To correct: ..." --lookup   # faster where a text repeats its prompt
engine generate decoder.onnx -d CPU --prompt-ids 1 --draft small.onnx     # a smaller model proposes tokens
engine generate decoder.onnx -d CPU --prompt-ids 1 --adapter tuned        # with the adapter in a folder
engine generate decoder.onnx -d CPU --prompt-ids 1,15043 --beams 4        # the likeliest sequence of a beam search
engine generate models/t5 -d CPU --prompt "translate English to German: hello"  # an encoder and a decoder
engine generate models/whisper -d CPU --features mel.npy --prompt-ids 50258  # what an encoder of sound reads
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE", help=f"{MODEL_OR_BLOB}, or a folder with genai_config.json")
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
        "--temperature", metavar="X", type=float, help="above 0: draw tokens (default: take the likeliest)"
    )
    parser.add_argument("--top-k", metavar="N", type=count, help="draw from the N likeliest tokens only")
    parser.add_argument("--top-p", metavar="P", type=float, help="draw from the likeliest tokens that together reach P")
    parser.add_argument(
        "--min-p", metavar="P", type=float, help="draw from tokens with P of the likeliest's probability"
    )
    parser.add_argument("--repetition-penalty", metavar="X", type=float, help="above 1: avoid tokens that occurred")
    parser.add_argument("--presence-penalty", metavar="X", type=float, help="above 0: avoid tokens generated before")
    parser.add_argument("--frequency-penalty", metavar="X", type=float, help="the same, for each time they were")
    parser.add_argument("--seed", metavar="N", type=count, help="seed of drawn tokens (default: 0)")
    parser.add_argument(
        "--stop", metavar="TEXT", action="append", default=[],
        help="end the text of --prompt before TEXT; may be given several times",
    )  # fmt: skip
    parser.add_argument("--beams", metavar="N", type=positive, help="search for the likeliest sequence with N beams")
    parser.add_argument("--features", metavar="FILE", help="what an encoder reads, an array in a file of numpy")
    proposing = parser.add_mutually_exclusive_group()
    proposing.add_argument(
        "--lookup", action="store_true", help="propose tokens that followed the last ones earlier in the text"
    )
    proposing.add_argument(
        "--draft", metavar="FILE", help="a smaller model with the same tokens, or its blob, which proposes tokens"
    )
    parser.add_argument("--adapter", metavar="FOLDER", help="a LoRA adapter, as PEFT writes it, to apply")
    add_json(parser)


def ids(text: str) -> list[int]:
    """Parse the numbers of tokens, such as `1,15043`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers of tokens such as 1,15043, got {text!r}") from None


def run(args: argparse.Namespace) -> int:
    """Continue the prompt, and print tokens as they are computed."""
    from engine.cli.networks import make_core, open_network
    from engine.errors import InputError, PassError
    from engine.generation import Generator, PromptLookup, TextStream, read_adapter, read_genai_folder, read_tokenizer
    from engine.generation.encoder_decoder_folder import is_encoder_decoder_folder
    from engine.passes import LastPosition, MakeAdaptable, MakeStateful

    if args.stop and args.prompt is None:
        raise UsageError("--stop is a text; give the prompt as a text, too: --prompt")
    if args.beams and (args.lookup or args.draft):
        raise UsageError("--beams computes without proposals; leave out --lookup and --draft")
    if os.path.isdir(args.model) and is_encoder_decoder_folder(args.model):
        return run_encoder_decoder(args)
    if args.features:
        raise UsageError("--features is what an encoder reads; give a folder with an encoder and a decoder")
    folder = read_genai_folder(args.model) if os.path.isdir(args.model) else None
    sampling = sampling_of(args, folder)
    adapter = read_adapter(args.adapter) if args.adapter else None
    if folder is not None:
        args.model = str(folder.model)

    def stateful(model: Model, folder: GenaiFolder | None, count: int) -> Model:
        names = [parameter.friendly_name for parameter in model.parameters]
        MakeStateful(None if folder is None else folder.pairs(names)).run_on_model(model)
        logits = "logits" if folder is None else folder.names.get("logits", "logits")
        with contextlib.suppress(PassError):  # another form of the head: it is computed for all tokens of the prompt
            LastPosition(logits, count).run_on_model(model)
        return model

    prompt, text = args.prompt_ids, None
    if args.prompt is not None:
        tokenizer = read_tokenizer(tokenizer_file(args, folder))
        prompt, text = tokenizer.encode(args.prompt).ids, TextStream(tokenizer, args.stop)
    count = args.max_tokens
    if folder is not None and folder.max_length is not None:
        count = min(count, folder.max_length - len(prompt))
        if count < 1:
            raise InputError(
                f"the prompt has {len(prompt)} tokens; expected fewer than {folder.max_length}, the maximum of a "
                "sequence "
                f"by {folder.folder}"
            )
    core = make_core(args)
    checked = 1 + PromptLookup().tokens if args.lookup or args.draft else 1

    def prepared(model: Model) -> Model:
        made = stateful(model, folder, checked)
        if adapter is not None:
            MakeAdaptable(adapter.modules, rank=adapter.rank).run_on_model(made)
        return made

    network = open_network(core, args, prepared).network
    draft: PromptLookup | ExecutableNetwork | None = PromptLookup() if args.lookup else None
    if args.draft:
        of_draft = argparse.Namespace(**(vars(args) | {"model": args.draft}))
        draft = open_network(core, of_draft, lambda model: stateful(model, None, 1)).network
    ends, names = ((), {}) if folder is None else (folder.stop_tokens, folder.names)
    generator = Generator(
        network, sampling, stop_tokens=[*args.stop_ids, *ends], names=names, draft=draft, adapter=adapter
    )
    generator.append(prompt)
    print_tokens(args, generator, count, text, None if folder is None else folder.beams)
    return 0


def run_encoder_decoder(args: argparse.Namespace) -> int:
    """Encode the prompt or the features, and print tokens of the decoder as they are computed."""
    from engine.cli.networks import make_core, parse_config, require_device
    from engine.errors import InputError
    from engine.generation import EncoderDecoder, TextStream, read_encoder_decoder_folder, read_tokenizer
    from engine.passes import MakeStateful
    from engine.values.files import read_value

    if args.lookup or args.draft or args.adapter:
        raise UsageError("--lookup, --draft and --adapter are for models without an encoder")
    folder = read_encoder_decoder_folder(args.model)
    given, text = args.prompt_ids, None
    if args.prompt is not None:
        tokenizer = read_tokenizer(tokenizer_file(args, folder))
        given, text = tokenizer.encode(args.prompt).ids, TextStream(tokenizer, args.stop)
    core = make_core(args)
    device, config = require_device(core, args), parse_config(core, require_device(core, args), args.config)
    encoder, decoder = folder.models(core.read_model)
    inputs = [parameter.friendly_name for parameter in decoder.parameters]
    MakeStateful(folder.pairs(inputs), bound=folder.bound).run_on_model(decoder)
    generator = EncoderDecoder(
        core.compile_model(encoder, device, config),
        core.compile_model(decoder, device, config),
        sampling_of(args, folder),
        stop_tokens=[*args.stop_ids, *folder.stop_tokens],
        names=folder.names,
        cross=folder.cross_names(inputs),
        begin_suppress_tokens=folder.begin_suppress_tokens,
    )
    if "input_ids" in {parameter.friendly_name for parameter in encoder.parameters}:
        if args.features:
            raise UsageError("the encoder reads tokens, those of the prompt; leave out --features")
        generator.encode([given])
        given = list(folder.prompt)
        if not given:
            raise InputError(f"{args.model} does not say with which token the decoder begins: decoder_start_token_id")
    elif not args.features:
        raise UsageError(f"the encoder of {args.model} reads features; give them by --features")
    else:
        generator.encode(read_value(args.features, encoder.parameters[0].type))
    count = args.max_tokens
    if folder.max_length is not None:
        count = min(count, folder.max_length - len(given))
        if count < 1:
            raise InputError(f"the prompt has {len(given)} tokens; expected fewer than {folder.max_length}")
    generator.append(given)
    print_tokens(args, generator, count, text, folder.beams)
    return 0


def sampling_of(args: argparse.Namespace, folder: GenaiFolder | EncoderDecoderFolder | None) -> Sampling:
    """How tokens are chosen: as the folder says, and the options, which come first."""
    from dataclasses import replace

    from engine.generation import Sampling

    options = (
        "repetition_penalty", "temperature", "top_k", "top_p", "seed", "min_p", "presence_penalty", "frequency_penalty",
    )  # fmt: skip
    given = {name: getattr(args, name) for name in options if getattr(args, name) is not None}
    if folder is None:
        return Sampling(**{"seed": 0} | given)
    if folder.sampling.seed is None:
        given.setdefault("seed", 0)
    return replace(folder.sampling, **given)


def tokenizer_file(args: argparse.Namespace, folder: GenaiFolder | EncoderDecoderFolder | None) -> Path:
    """The file that is given, or the one beside the model. Raises `InputError` if a folder has none."""
    from engine.errors import InputError

    if args.tokenizer:
        return Path(args.tokenizer)
    if folder is None:
        return Path(args.model).with_name("tokenizer.json")
    if not os.path.isfile(folder.tokenizer):
        raise InputError(
            f"{folder.folder} has no {folder.tokenizer.name}, which --prompt needs; name one by --tokenizer, or give "
            "the prompt as numbers: --prompt-ids"
        )
    return folder.tokenizer


def print_tokens(
    args: argparse.Namespace, generator: Generator, count: int, text: TextStream | None, beams: BeamSearch | None
) -> None:
    """Generate, and print tokens or text as they come, or all of them as JSON; those of a beam search come at once."""
    from engine.generation import BeamSearch

    if args.beams and (beams is None or beams.beams != args.beams):
        beams = (
            BeamSearch(args.beams)
            if beams is None
            else BeamSearch(args.beams, beams.length_penalty, beams.early_stopping)
        )
    tokens, pieces = [], []
    times = [time.perf_counter()]
    several = beams is not None and beams.beams > 1
    found = beams.search(generator, count)[0][0].tokens if several and beams is not None else generator.stream(count)
    for token in found:
        times.append(time.perf_counter())
        tokens.append(token)
        pieces.append(f"{token} " if text is None else text.add(token))
        if not args.json:
            say(pieces[-1], end="", flush=True, lines=True)
        if text is not None and text.is_stopped:
            break
    if text is not None:
        pieces.append(text.end())
    first, others = times[1] - times[0], (times[-1] - times[1]) / max(1, len(tokens) - 1)
    if args.json:
        said: dict[str, object] = {} if text is None else {"text": "".join(pieces)}
        if (proposed := generator.speculation) is not None:
            said["speculation"] = {
                "runs": proposed.runs, "proposed": proposed.proposed, "accepted": proposed.accepted
            }  # fmt: skip
        print_json(said | {"tokens": tokens, "first_token_seconds": first, "seconds_per_token": others})
    else:
        say("" if text is None else pieces[-1], lines=True)
        say(f"{len(tokens)} tokens; the first after {first * 1e3:.1f} ms, then {others * 1e3:.1f} ms for each")
