"""`VisionLanguage`: a language model that also sees pictures, in three parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError, StateError, UnsupportedError
from engine.generation.batch import Batch
from engine.generation.beam_search import BeamSearch
from engine.generation.generator import Generator
from engine.generation.picture_positions import GRID, Grid, grids_of, positions_of
from engine.generation.roles import IDS, POSITIONS, Tokens, checked_rows, given_names, input_for, largest_token
from engine.generation.sampling import Sampling
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork, Signature

Array = NDArray[Any]

EMBEDS: Final = "inputs_embeds"
FEATURES: Final = "image_features"
_PARTS: Final = (IDS, FEATURES, EMBEDS)
"""The roles of the embedding part's inputs and of its output."""


class VisionLanguage(Generator):
    """A `Generator` of a model in the three parts of onnxruntime-genai: vision, embedding and decoder.

    The prompt has a token for each place of a picture. The vision part computes the features of all pictures once, a
    row for each place; the embedding part, from tokens and these rows, what the decoder reads instead of tokens.

    Args:
        vision: the compiled part for pictures. Its inputs are given by name to `append`; its output is
            `image_features`, or another one alone, [places, width] or [pictures, places, width].
        embedding: the compiled part with the inputs `input_ids` and `image_features` [places, width], and the output
            `inputs_embeds` [batch, tokens, width].
        decoder: the compiled language model with variables, and `inputs_embeds` instead of `input_ids`.
        image_token: the token of a place; it is never generated.
        spatial_merge_size: how many rows, and columns, of patches are one place, for decoders with positions in time,
            height and width.
        sampling, stop_tokens, checkpoints: as for a `Generator`.
        names: names for `inputs_embeds` and the other inputs and `logits` of the decoder, where they differ.
        embedding_names: the same for the embedding part.

    Raises `InputError` as a `Generator` does, and if the parts do not fit together. Not thread-safe.
    """

    _has_ids = False

    def __init__(
        self,
        vision: ExecutableNetwork,
        embedding: ExecutableNetwork,
        decoder: ExecutableNetwork,
        sampling: Sampling | None = None,
        *,
        image_token: int,
        spatial_merge_size: int | None = None,
        stop_tokens: Collection[int] = (),
        names: Mapping[str, str] | None = None,
        embedding_names: Mapping[str, str] | None = None,
        checkpoints: int = 0,
    ) -> None:
        given = given_names(names)
        self._embeds = given.pop(EMBEDS, EMBEDS)
        self._vision, self._embedding = vision, embedding
        of_embedding = given_names(embedding_names, "embedding_names")
        if unknown := of_embedding.keys() - _PARTS:
            raise InputError(f"unknown role `{min(unknown)}` in embedding_names; expected {', '.join(_PARTS)}")
        self._part_names = {role: of_embedding.get(role, role) for role in _PARTS}
        self._features_name = _only_output(vision.signature)
        decoder.signature.find_input(self._embeds)
        self._feature_width = _checked_width(
            vision, embedding, decoder, self._features_name, self._part_names, self._embeds
        )
        self._vision_request, self._embedding_request = vision.create_infer_request(), embedding.create_infer_request()
        self._features: list[Array] = []
        """Of each sequence, the rows for its places."""
        self._grids: list[list[Grid]] = []
        """Of each sequence, its pictures."""
        if spatial_merge_size is not None and (
            isinstance(spatial_merge_size, bool) or not isinstance(spatial_merge_size, int) or spatial_merge_size < 1
        ):
            raise InputError(f"spatial_merge_size is {spatial_merge_size!r:.80}; expected a number from 1")
        self._merged = spatial_merge_size
        super().__init__(decoder, sampling, stop_tokens=stop_tokens, names=given, checkpoints=checkpoints)
        most = self._largest if self.vocabulary is None else min(self._largest, self.vocabulary - 1)
        if isinstance(image_token, bool) or not isinstance(image_token, int) or not 0 <= image_token <= most:
            raise InputError(f"image_token is {image_token!r:.80}; expected a token of the model, 0 to {most}")
        self._image_token = image_token
        position = self._names.get(POSITIONS)
        shape = decoder.signature.inputs[decoder.signature.find_input(position)].shape if position else None
        self._has_grid = shape is not None and shape.rank.is_static and len(shape) == 3

    @property
    def vision_request(self) -> AsyncInferRequest:
        """The request of the vision part; its `cancel` stops an `append` that another thread runs."""
        return self._vision_request

    @property
    def forbidden_tokens(self) -> list[int]:
        """The tokens that are not chosen next: the one of places for pictures."""
        return [self._image_token]

    def append(self, tokens: Tokens, pictures: Mapping[str, object] | None = None) -> None:
        """Append tokens to the sequence, or to each sequence of a batch: see `Generator.append`.

        Args:
            tokens: with `image_token` for each place of a picture.
            pictures: the inputs of the vision part, such as `pixel_values`, for all pictures of these tokens in their
                order; in a batch, those of the first sequence first. For decoders with positions in time, height and
                width, also `image_grid_thw` [pictures, 3], the numbers of patches.

        Raises `InputError` for other numbers of places than the pictures have, and the errors of the vision part. The
        generator stays as it was.
        """
        rows = checked_rows(tokens, self.vocabulary, self._largest)
        places = [row.count(self._image_token) for row in rows]
        features, grids = self._seen(pictures)
        if sum(places) != len(features):
            raise InputError(
                f"the tokens have {sum(places)} places for pictures ({self._image_token}), and the pictures "
                f"{len(features)}; expected equally many"
            )
        of_rows = _divided(grids, places) if self._has_grid else [[] for _ in rows]
        super().append(rows)
        ends = np.cumsum(places)[:-1]
        added = np.split(features, ends)
        known = self._features or [features[:0]] * len(rows)
        self._features = [np.concatenate(each) for each in zip(known, added, strict=True)]
        earlier = self._grids or [[] for _ in rows]
        self._grids = [[*old, *new] for old, new in zip(earlier, of_rows, strict=True)]

    def generate(
        self,
        tokens: Tokens,
        max_tokens: int = 256,
        *,
        n: int = 1,
        beams: BeamSearch | None = None,
        pictures: Mapping[str, object] | None = None,
    ) -> list[list[int]]:
        """Append tokens and their pictures, and return the next tokens: see `append` and `Generator.generate`."""
        self._check_options(max_tokens, n, beams)
        self.append(tokens, pictures)
        return self._generated(max_tokens, n, beams)

    def reset(self) -> None:
        """Forget all tokens and pictures, so that the next prompt starts a new text."""
        super().reset()
        self._features, self._grids = [], []

    def rewind(self, count: int) -> None:
        """Forget the last `count` tokens of each sequence, and their places: see `Generator.rewind`.

        Also raises `StateError` if a part of a picture would be left, and its places have rows and columns.
        """
        cut = [row[: max(0, len(row) - count)] for row in self.tokens] if isinstance(count, int) else self.tokens
        left = [row.count(self._image_token) for row in cut]
        grids = [_within(each, places) for each, places in zip(self._grids, left, strict=True)]
        if self._has_grid and any(sum(grid.places for grid in each) != n for each, n in zip(grids, left, strict=True)):
            raise StateError(f"cannot rewind by {count} tokens: a part of a picture would be left")
        super().rewind(count)
        self._features = [features[:places] for features, places in zip(self._features, left, strict=True)]
        self._grids = grids

    def fork(self) -> VisionLanguage:
        """A generator that continues from the same tokens and pictures; neither sees the other's further ones."""
        made = super().fork()
        made._vision_request = self._vision.create_infer_request()
        made._embedding_request = self._embedding.create_infer_request()
        made._grids = [list(grids) for grids in self._grids]
        return made

    # -- internals --------------------------------------------------------------------------------------------

    def _seen(self, pictures: Mapping[str, object] | None) -> tuple[Array, list[Grid]]:
        """The features of pictures [places, width], and their grids."""
        signature = self._embedding.signature
        dtype = signature.inputs[signature.find_input(self._part_names[FEATURES])].element_type.numpy
        if pictures is None:
            return np.zeros((0, self._feature_width), dtype), []
        if not isinstance(pictures, Mapping):
            raise InputError(f"pictures is {pictures!r:.80}; expected the inputs of the vision part by name")
        inputs = {port.name for port in self._vision.inputs}
        grids: list[Grid] = []
        if self._has_grid:
            if GRID not in pictures or self._merged is None:
                raise InputError(
                    f"the decoder has positions in time, height and width; expected `{GRID}` among the pictures' "
                    "inputs, and spatial_merge_size"
                )
            grids = grids_of(pictures[GRID], self._merged)
        given = {name: value for name, value in pictures.items() if name in inputs or name != GRID}
        self._vision_request.clear_tensors()
        found = np.asarray(self._vision_request.infer(given)[self._features_name])
        features = np.array(found.reshape(-1, found.shape[-1]), dtype, order="C")
        if found.ndim not in (2, 3) or features.shape[1] != self._feature_width:
            raise InputError(f"the vision part gives {found.shape}; expected [places, {self._feature_width}]")
        return features, grids

    def _largest_token(self) -> int:
        return largest_token(self._embedding.signature, self._part_names[IDS])

    def _further_names(self, network: ExecutableNetwork) -> frozenset[str]:
        return frozenset({self._embeds})

    def _further_inputs(self, known: Batch) -> dict[str, Array]:
        new = slice(known.computed, None)
        is_place = (known.ids == self._image_token) & known.mask
        before, count = is_place[:, : known.computed].sum(axis=1), is_place[:, new].sum(axis=1)
        rows = [each[first : first + more] for each, first, more in zip(self._features, before, count, strict=True)]
        signature, names = self._embedding.signature, self._part_names
        result = self._embedding_request.infer(
            {
                names[IDS]: input_for(signature, names[IDS], known.ids[:, new]),
                names[FEATURES]: np.concatenate(rows) if rows else np.zeros((0, self._feature_width)),
            }
        )
        embedded = np.asarray(result[names[EMBEDS]])
        if embedded.shape[:2] != known.ids[:, new].shape:
            raise InputError(f"the embedding part gives {embedded.shape} for tokens {known.ids[:, new].shape}")
        # A copy, since the next inference of the embedding part may write into the same memory.
        made = {self._embeds: np.array(embedded, order="C")}
        if self._has_grid and any(self._grids):
            made[self._names[POSITIONS]] = self._positions(known)[:, :, new].copy()
        return made

    def _positions(self, known: Batch) -> Array:
        """The positions [3, batch, columns] in time, height and width."""
        each = [
            positions_of(row, grids, self._image_token)[:, places]
            for row, grids, places in zip(known.rows, self._grids, known.positions, strict=True)
        ]
        name = self._names[POSITIONS]
        return input_for(self._network.signature, name, np.stack(each, axis=1))

    def _follow(self, indices: Sequence[int]) -> None:
        self._features = [self._features[i] for i in indices]
        self._grids = [list(self._grids[i]) for i in indices]


def _only_output(signature: Signature) -> str:
    names = [port.name for port in signature.outputs]
    if FEATURES in names:
        return FEATURES
    if len(names) == 1:
        return names[0]
    raise InputError(f"{signature.network} has the outputs {', '.join(names)}; expected `{FEATURES}`")


def _checked_width(
    vision: ExecutableNetwork,
    embedding: ExecutableNetwork,
    decoder: ExecutableNetwork,
    features: str,
    names: Mapping[str, str],
    embeds: str,
) -> int:
    """The width of a row of features. Raises `InputError` if the parts do not fit together."""
    of_vision, of_embedding, of_decoder = vision.signature, embedding.signature, decoder.signature
    given = of_embedding.inputs[of_embedding.find_input(names[FEATURES])]
    of_embedding.find_input(names[IDS])
    if others := {port.name for port in of_embedding.inputs} - {names[IDS], names[FEATURES]}:
        raise UnsupportedError(
            f"{of_embedding.network} has the input `{min(others)}`; expected `{IDS}` and `{FEATURES}` alone: parts for "
            "sound are not supported"
        )
    if given.shape.rank.is_dynamic or len(given.shape) != 2 or given.shape[1].is_dynamic:
        raise InputError(f"{of_embedding.network}: input `{given.name}` is {given.type}; expected [places, width]")
    width = given.shape[1].get_length()
    seen = of_vision.outputs[of_vision.find_output(features)]
    if seen.shape.rank.is_static and (len(seen.shape) not in (2, 3) or not seen.shape[-1].accepts(width)):
        raise InputError(
            f"{of_vision.network}: output `{features}` is {seen.type}, and the embedding part reads {given.type}; "
            "expected parts of one model"
        )
    made = of_embedding.outputs[of_embedding.find_output(names[EMBEDS])]
    read = of_decoder.inputs[of_decoder.find_input(embeds)]
    if made.element_type is not read.element_type or not made.shape.compatible(read.shape):
        raise InputError(
            f"{of_decoder.network}: input `{embeds}` is {read.type}, and the embedding part gives {made.type}; "
            "expected parts of one model"
        )
    return width


def _within(grids: Sequence[Grid], places: int) -> list[Grid]:
    """The first pictures, as far as all their places are among so many."""
    made: list[Grid] = []
    for grid in grids:
        if sum(each.places for each in made) + grid.places > places:
            break
        made.append(grid)
    return made


def _divided(grids: Sequence[Grid], places: Sequence[int]) -> list[list[Grid]]:
    """The pictures of each sequence, which has so many places. Raises `InputError` if they do not fit."""
    left, made = list(grids), []
    for row, count in enumerate(places):
        mine: list[Grid] = []
        while left and sum(grid.places for grid in mine) < count:
            mine.append(left.pop(0))
        if sum(grid.places for grid in mine) != count:
            raise InputError(
                f"sequence {row} has {count} places for pictures, and `{GRID}` says {[grid.places for grid in mine]}; "
                "expected equally many"
            )
        made.append(mine)
    if left:
        raise InputError(f"`{GRID}` has {len(grids)} pictures, {len(left)} more than the tokens have places for")
    return made
