"""`VisionLanguageFolder`: a model in the three parts of onnxruntime-genai, a folder with `genai_config.json`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from engine.errors import UnsupportedError
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
from engine.generation.genai_folder import CONFIG_FILE, TOKENIZER_FILE
from engine.generation.roles import IDS, LOGITS, MASK, POSITIONS
from engine.generation.sampling import Sampling
from engine.generation.vision_language import EMBEDS, FEATURES
from engine.startup import dataclass

_ONLY: Final = {"num_return_sequences": 1, "no_repeat_ngram_size": 0, "min_length": 0, "diversity_penalty": 0}
"""Settings that would change the tokens, and the values with which they change nothing."""
_KINDS: Final = ("key", "value")
_MISSING: Final = "so it is not a folder of onnxruntime-genai; expected its three parts and their configuration"


@dataclass(frozen=True, slots=True)
class VisionLanguageFolder:
    """The description of a model of three parts in `genai_config.json`.

    Attributes:
        folder: where the files are.
        vision: the file of the part for pictures.
        embedding: the file of the part that joins tokens and pictures.
        decoder: the file of the language model.
        names: the decoder's names for `inputs_embeds`, `attention_mask`, `position_ids` and `logits`, where they
            differ.
        embedding_names: those of the embedding part, likewise.
        states: the names of past and present keys and values, with `%d` for the number of a layer.
        image_token: the token of a place for pictures; None if the folder does not say.
        spatial_merge_size: how many rows, and columns, of patches are one place; None if the folder does not say.
        stop_tokens: a sequence ends with any of these.
        sampling: how tokens are chosen.
        beams: the beam search that finds the tokens; None for one beam.
        max_length: the most tokens of a sequence with its prompt; None for no limit.
    """

    folder: Path
    vision: Path
    embedding: Path
    decoder: Path
    names: dict[str, str]
    embedding_names: dict[str, str]
    states: tuple[tuple[str, str], ...]
    image_token: int | None
    spatial_merge_size: int | None
    stop_tokens: tuple[int, ...]
    sampling: Sampling
    beams: BeamSearch | None
    max_length: int | None

    @property
    def tokenizer(self) -> Path:
        """The file of the tokenizer, which need not exist."""
        return self.folder / TOKENIZER_FILE

    def pairs(self, inputs: Collection[str]) -> dict[str, str] | None:
        """The pairs of the decoder's inputs and outputs for `MakeStateful`; None if it finds them."""
        return numbered(self.states, inputs) or None


def read_vision_language_folder(folder: str | Path) -> VisionLanguageFolder:
    """Read the configuration of a folder with the parts `vision`, `embedding` and `decoder`.

    Raises `ModelReadError`, naming file, key, value and what is expected, if something is missing, malformed or wrong;
    `UnsupportedError` for a part for sound, a part of several models, and settings without which other tokens would be
    generated, such as `min_length`.
    """
    folder = Path(folder)
    config = read_config(folder / CONFIG_FILE, _MISSING)
    model, search = config.table("model", is_required=True), config.table("search")
    vision, embedding, decoder = (model.table(key, is_required=True) for key in ("vision", "embedding", "decoder"))
    for table, key in ((model, "speech"), (model, "encoder"), (vision, "pipeline"), (decoder, "pipeline")):
        if key in table.values:
            raise UnsupportedError(
                f"{config.path}: `{table.where}{key}` is not supported; expected the parts vision, embedding and "
                "decoder, each in one file"
            )
    require_usual(search, _ONLY)
    inputs, outputs = decoder.table("inputs"), decoder.table("outputs")
    roles = _named(inputs, EMBEDS, MASK, POSITIONS) | _named(outputs, LOGITS)
    of_embedding = _named(embedding.table("inputs"), IDS, FEATURES) | _named(embedding.table("outputs"), EMBEDS)
    states = tuple(
        (layered(inputs, f"past_{kind}_names", f"past_key_values.%d.{kind}"),
         layered(outputs, f"present_{kind}_names", f"present.%d.{kind}"))
        for kind in _KINDS
    )  # fmt: skip
    return VisionLanguageFolder(
        folder,
        file_of(vision, "vision.onnx", folder),
        file_of(embedding, "embedding.onnx", folder),
        file_of(decoder, "model.onnx", folder),
        roles,
        of_embedding,
        states,
        model.number("image_token_id", whole(0)),
        vision.number("spatial_merge_size", whole(1)),
        tokens_of(model, "eos_token_id"),
        sampling_of(search),
        beams_of(search),
        least(search.number("max_length", whole(1)), model.number("context_length", whole(1))),
    )


def _named(table: ConfigTable, *roles: str) -> dict[str, str]:
    """The names of roles that differ from them."""
    names = {role: table.text(role, role) for role in roles}
    return {role: name for role, name in names.items() if role != name}
