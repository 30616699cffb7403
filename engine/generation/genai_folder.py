"""`GenaiFolder`: a language model as onnxruntime-genai's builder writes it, a folder with `genai_config.json`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from engine.errors import UnsupportedError
from engine.generation.beam_search import BeamSearch
from engine.generation.config_file import (
    ConfigTable,
    beams_of,
    file_of,
    read_config,
    require_usual,
    sampling_of,
    tokens_of,
    whole,
)
from engine.generation.roles import IDS, LOGITS, MASK, POSITIONS
from engine.generation.sampling import Sampling
from engine.startup import dataclass

CONFIG_FILE: Final = "genai_config.json"
TOKENIZER_FILE: Final = "tokenizer.json"

_MISSING: Final = (
    "so it is not a folder of onnxruntime-genai's builder; give the file of a model, or the folder that the builder "
    "wrote"
)
_STATES: Final = tuple(
    (f"past_{kind}_names", f"present_{kind}_names") for kind in ("key", "value", "conv", "recurrent")
)
_USUAL: Final = (
    ("past_key_values.%d.key", "present.%d.key"),
    ("past_key_values.%d.value", "present.%d.value"),
    ("past.%d.conv", "present.%d.conv"),
    ("past.%d.recurrent", "present.%d.recurrent"),
)
"""Names that `MakeStateful` finds by itself."""
_PARTS: Final = ("encoder", "vision", "speech", "embedding")
_READERS: Final = {"encoder": "read_encoder_decoder_folder", "vision": "read_vision_language_folder"}
_ONLY: Final[Mapping[str, float]] = {
    "num_return_sequences": 1, "no_repeat_ngram_size": 0, "min_length": 0, "diversity_penalty": 0,
}  # fmt: skip
"""Settings that would change the tokens, and the values with which the engine gives the same tokens."""


@dataclass(frozen=True, slots=True)
class GenaiFolder:
    """The description of a language model in `genai_config.json`.

    Attributes:
        folder: where the files are.
        model: the file of the decoder.
        names: the model's names for `input_ids`, `attention_mask`, `position_ids` and `logits`, where they differ.
        states: the names of past and present keys, values and states of a fixed size, with `%d` for the number of a
            layer.
        stop_tokens: a sequence ends with any of these.
        sampling: how tokens are chosen.
        max_length: the most tokens of a sequence with its prompt; None for no limit.
        beams: the beam search that finds the tokens; None for one beam.
    """

    folder: Path
    model: Path
    names: dict[str, str]
    states: tuple[tuple[str, str], ...]
    stop_tokens: tuple[int, ...]
    sampling: Sampling
    max_length: int | None
    beams: BeamSearch | None = None

    @property
    def tokenizer(self) -> Path:
        """The file of the tokenizer, which need not exist."""
        return self.folder / TOKENIZER_FILE

    def pairs(self, inputs: Collection[str]) -> dict[str, str] | None:
        """The pairs of inputs and outputs for `MakeStateful`; None if it finds them by their usual names."""
        if set(self.states) <= set(_USUAL):
            return None
        found: dict[str, str] = {}
        for past, present in self.states:
            for layer in range(len(inputs)):
                if (name := past.replace("%d", str(layer))) in inputs:
                    found[name] = present.replace("%d", str(layer))
        return found


def read_genai_folder(folder: str | Path) -> GenaiFolder:
    """Read the configuration of a folder that onnxruntime-genai's builder wrote.

    Raises `ModelReadError`, naming file, key, value and what is expected, if it is missing, malformed or has wrong
    values, or if it names a file that is not there; `UnsupportedError` for models of several parts, and for settings
    without which other tokens would be generated, such as `min_length`.
    """
    folder = Path(folder)
    path = folder / CONFIG_FILE
    config = read_config(path, _MISSING)
    model, search = config.table("model", is_required=True), config.table("search")
    decoder = model.table("decoder", is_required=True)
    for key in _PARTS:
        if key in model.values:
            hint = f": read it with {_READERS[key]}" if key in _READERS else ""
            raise UnsupportedError(
                f"{path}: `model.{key}` is a further part of the model; expected a decoder alone{hint}"
            )
    if "pipeline" in decoder.values:
        raise UnsupportedError(f"{path}: `model.decoder.pipeline` has several models; expected one file")
    names, states = _names(decoder)
    require_usual(search, _ONLY)
    lengths = (search.number("max_length", whole(1)), model.number("context_length", whole(1)))
    return GenaiFolder(
        folder,
        file_of(decoder, "model.onnx", folder),
        names,
        states,
        tokens_of(model, "eos_token_id"),
        sampling_of(search),
        min((each for each in lengths if each is not None), default=None),
        beams_of(search),
    )


def _names(decoder: ConfigTable) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """The unusual names of inputs and of logits, and the names of past and present values."""
    inputs, outputs = decoder.table("inputs"), decoder.table("outputs")
    if "inputs_embeds" in inputs.values and IDS not in inputs.values:
        raise UnsupportedError(
            f"{decoder.path}: the decoder reads `{inputs.where}inputs_embeds`, which another model computes; expected "
            f"`{IDS}`"
        )
    given = {role: table.text(role, role) for table, roles in ((inputs, (IDS, MASK, POSITIONS)), (outputs, (LOGITS,)))
             for role in roles}  # fmt: skip
    states = []
    for (past, present), usual in zip(_STATES, _USUAL, strict=True):
        pair = inputs.text(past, usual[0]), outputs.text(present, usual[1])
        for table, key, name in ((inputs, past, pair[0]), (outputs, present, pair[1])):
            if name.count("%d") != 1:
                raise table.wrong(key, "a name with one %d, for the number of a layer")
        states.append(pair)
    return {role: name for role, name in given.items() if name != role}, tuple(states)
