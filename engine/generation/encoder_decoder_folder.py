"""`EncoderDecoderFolder`: an encoder-decoder as onnxruntime-genai's builder or Optimum writes it, a folder."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.errors import ModelReadError, UnsupportedError
from engine.generation.beam_search import BeamSearch
from engine.generation.config_file import (
    ConfigTable,
    beams_of,
    file_of,
    layered,
    least,
    numbered,
    read_config,
    require_usual,
    sampling_of,
    tokens_of,
    whole,
)
from engine.generation.cross_states import with_cross_states
from engine.generation.genai_folder import CONFIG_FILE, TOKENIZER_FILE
from engine.generation.roles import IDS, LOGITS
from engine.generation.sampling import Sampling
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine.ir import Model

_ENCODER: Final = "encoder_model.onnx"
_FIRST: Final = "decoder_model.onnx"
_WITH_PAST: Final = "decoder_with_past_model.onnx"
_ONLY: Final = {
    "num_return_sequences": 1, "no_repeat_ngram_size": 0, "min_length": 0, "diversity_penalty": 0, "num_beam_groups": 1,
    "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "typical_p": 1.0, "min_new_tokens": 0,
}  # fmt: skip
"""Settings that would change the tokens, and the values with which they change nothing."""
_LENGTHS: Final = ("max_target_positions", "max_position_embeddings", "n_positions")
_MISSING: Final = (
    f"and no {CONFIG_FILE}; expected a folder of onnxruntime-genai's builder, or one of Optimum with {_ENCODER}, "
    f"{_FIRST}, {_WITH_PAST} and config.json"
)


@dataclass(frozen=True, slots=True)
class EncoderDecoderFolder:
    """The description of an encoder-decoder in its folder.

    Attributes:
        folder: where the files are.
        encoder: the file of the encoder.
        decoder: the file of the decoder, which takes past keys and values.
        projections: the file of Optimum's decoder for the first tokens, which computes the keys and values of
            cross-attention; None if the encoder computes them.
        names: the decoder's names for `input_ids` and `logits`, where they differ.
        states: the names of past and present keys and values, with `%d` for the number of a layer; empty if
            `MakeStateful` finds them.
        cross: the names of the decoder's inputs and the encoder's outputs for cross-attention, with `%d`; empty if
            `EncoderDecoder` finds them.
        prompt: the tokens with which the decoder begins; empty if the folder does not say.
        stop_tokens: a sequence ends with any of these.
        begin_suppress_tokens: these are not generated first.
        sampling: how tokens are chosen.
        beams: the beam search that finds the tokens; None for one beam.
        max_length: the most tokens of a sequence with its prompt; None for no limit.
        bound: the most tokens that the decoder has positions for; None if it is not known.
    """

    folder: Path
    encoder: Path
    decoder: Path
    projections: Path | None
    names: dict[str, str]
    states: tuple[tuple[str, str], ...]
    cross: tuple[tuple[str, str], ...]
    prompt: tuple[int, ...]
    stop_tokens: tuple[int, ...]
    begin_suppress_tokens: tuple[int, ...]
    sampling: Sampling
    beams: BeamSearch | None
    max_length: int | None
    bound: int | None

    @property
    def tokenizer(self) -> Path:
        """The file of the tokenizer, which need not exist."""
        return self.folder / TOKENIZER_FILE

    def models(self, read_model: Callable[[Path], Model]) -> tuple[Model, Model]:
        """The encoder and the decoder, as `EncoderDecoder` takes them once they are compiled.

        Args:
            read_model: such as `core.read_model`.

        The decoder still needs `engine.passes.MakeStateful`. Optimum's decoder with a past is exported for one token
        at a time; longer prompts are computed in parts. Raises what `read_model` and `with_cross_states` raise.
        """
        encoder, decoder = read_model(self.encoder), read_model(self.decoder)
        if self.projections is not None:
            encoder = with_cross_states(encoder, read_model(self.projections))
            name = self.names.get(IDS, IDS)
            ids = decoder.parameter(name).output(0).shape
            decoder.reshape({name: [ids[0], 1]})
        return encoder, decoder

    def pairs(self, inputs: Collection[str]) -> dict[str, str] | None:
        """The pairs of the decoder's inputs and outputs for `MakeStateful`; None if it finds them."""
        return numbered(self.states, inputs) or None

    def cross_names(self, inputs: Collection[str]) -> dict[str, str]:
        """The encoder's output for inputs of the decoder, for `EncoderDecoder`."""
        return numbered(self.cross, inputs)


def read_encoder_decoder_folder(folder: str | Path) -> EncoderDecoderFolder:
    """Read the configuration of a folder with an encoder and a decoder.

    onnxruntime-genai's builder writes `genai_config.json`, which names all files; Optimum writes `encoder_model.onnx`,
    `decoder_model.onnx`, `decoder_with_past_model.onnx`, `config.json` and `generation_config.json`.

    Raises `ModelReadError`, naming file, key, value and what is expected, if something is missing, malformed or wrong;
    `UnsupportedError` for settings without which other tokens would be generated, such as `min_length`.
    """
    folder = Path(folder)
    if os.path.isfile(folder / CONFIG_FILE):
        return _of_builder(folder)
    return _of_optimum(folder)


def is_encoder_decoder_folder(folder: str | Path) -> bool:
    """Whether a folder says that it has an encoder. Raises `ModelReadError` if its configuration is malformed."""
    folder = Path(folder)
    if os.path.isfile(folder / CONFIG_FILE):
        model = read_config(folder / CONFIG_FILE, _MISSING).values.get("model")
        return isinstance(model, dict) and "encoder" in model and "vision" not in model
    return os.path.isfile(folder / _ENCODER)


def _of_builder(folder: Path) -> EncoderDecoderFolder:
    config = read_config(folder / CONFIG_FILE, _MISSING)
    model, search = config.table("model", is_required=True), config.table("search")
    encoder, decoder = model.table("encoder", is_required=True), model.table("decoder", is_required=True)
    require_usual(search, _ONLY)
    inputs, outputs, given = decoder.table("inputs"), decoder.table("outputs"), encoder.table("outputs")
    names = {IDS: inputs.text(IDS, IDS), LOGITS: outputs.text(LOGITS, LOGITS)}
    states = tuple(
        (layered(inputs, f"past_{kind}_names", f"past_{kind}_self_%d"),
         layered(outputs, f"present_{kind}_names", f"present_{kind}_self_%d"))
        for kind in ("key", "value")
    )  # fmt: skip
    cross = tuple(
        (layered(inputs, f"cross_past_{kind}_names", f"past_{kind}_cross_%d"),
         layered(given, f"cross_present_{kind}_names", f"present_{kind}_cross_%d"))
        for kind in ("key", "value")
    )  # fmt: skip
    bound = model.number("context_length", whole(1))
    return EncoderDecoderFolder(
        folder,
        file_of(encoder, "encoder.onnx", folder),
        file_of(decoder, "decoder.onnx", folder),
        None,
        {role: name for role, name in names.items() if role != name},
        states,
        cross,
        tokens_of(model, "decoder_start_token_id"),
        tokens_of(model, "eos_token_id"),
        (),
        sampling_of(search),
        beams_of(search),
        least(search.number("max_length", whole(1)), bound),
        bound,
    )


def _of_optimum(folder: Path) -> EncoderDecoderFolder:
    config = read_config(folder / "config.json", _MISSING)
    for name in (_ENCODER, _FIRST, _WITH_PAST):
        if not os.path.isfile(folder / name):
            raise ModelReadError(
                f"{folder} has no {name}; expected a folder of Optimum with {_ENCODER}, {_FIRST} and {_WITH_PAST}, as "
                "`optimum-cli export onnx` writes it for a task such as text2text-generation-with-past. A merged "
                "decoder alone is not read"
            )
    # Older releases of transformers have these settings in the configuration of the model.
    path = folder / "generation_config.json"
    generation = read_config(path, "") if os.path.isfile(path) else config
    require_usual(generation, _ONLY)
    _require_none(generation, "bad_words_ids", "sequence_bias", "forced_bos_token_id", "forced_eos_token_id")
    suppressed = dict.fromkeys(tokens_of(generation, "suppress_tokens"), float("-inf"))
    sampling = sampling_of(generation)
    if suppressed:
        from dataclasses import replace

        sampling = replace(sampling, logit_bias=suppressed)
    bound = next((found for key in _LENGTHS if (found := config.number(key, whole(1))) is not None), None)
    # The relative positions of T5 have no end; `n_positions` is what it was trained with.
    is_relative = "relative_attention_num_buckets" in config.values
    source = generation if "decoder_start_token_id" in generation.values else config
    return EncoderDecoderFolder(
        folder,
        folder / _ENCODER,
        folder / _WITH_PAST,
        folder / _FIRST,
        {},
        (),
        (),
        (*tokens_of(source, "decoder_start_token_id"), *_forced(generation)),
        tokens_of(generation if "eos_token_id" in generation.values else config, "eos_token_id"),
        tokens_of(generation, "begin_suppress_tokens"),
        sampling,
        beams_of(generation),
        least(generation.number("max_length", whole(1)), None if is_relative else bound),
        None if is_relative else bound,
    )


def _forced(generation: ConfigTable) -> tuple[int, ...]:
    """The tokens behind the first one that are given, as older configurations of Whisper list them with places."""
    found = generation.values.get("forced_decoder_ids") or []
    is_token, _ = whole(0)
    for place, each in enumerate(found if isinstance(found, list) else [found], 1):
        if not isinstance(each, list) or len(each) != 2 or each[0] != place or not is_token(each[1]):
            raise UnsupportedError(
                f"{generation.path}: `forced_decoder_ids` is {found!r:.80}; expected tokens for the places 1, 2 and so "
                "on: remove it, and give the tokens in the prompt"
            )
    return tuple(each[1] for each in found)


def _require_none(generation: ConfigTable, *keys: str) -> None:
    for key in keys:
        if generation.values.get(key):
            raise UnsupportedError(
                f"{generation.path}: `{key}` is {generation.values[key]!r:.80}, which the engine does not have; remove "
                "it"
            )
