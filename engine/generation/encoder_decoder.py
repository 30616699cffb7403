"""`EncoderDecoder`: sequences of tokens that a decoder generates for what an encoder has read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.generation.batch import Batch
from engine.generation.cross_inputs import CrossInputs, taken
from engine.generation.generator import Generator
from engine.generation.roles import (
    IDS,
    MASK,
    Tokens,
    checked_rows,
    checked_stop_tokens,
    given_names,
    largest_token,
)
from engine.generation.sampling import Sampling
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork

Array = NDArray[Any]

_NOTHING: Final[dict[str, Array]] = {}


class EncoderDecoder(Generator):
    """A `Generator` whose network also reads what an encoder has computed, as in Whisper and T5.

    `encode` runs the encoder once. What the decoder reads of its results, the keys and values of cross-attention, or
    `encoder_hidden_states`, is kept and given to each run of the decoder without copies. Sequence i of a batch belongs
    to row i of the encoder's inputs; where `repeat`, `reorder` or a beam search change that, rows are copied once.

    Args:
        encoder: the compiled encoder. Its outputs are the decoder's inputs of the same names, with `present` for
            `past`, or `last_hidden_state` for `encoder_hidden_states`. The encoder's input `attention_mask` is also the
            decoder's `encoder_attention_mask`.
        decoder: the compiled decoder, with variables for the keys and values of its own tokens.
        cross: the encoder's output for inputs of the decoder, where the names differ.
        begin_suppress_tokens: these are not generated directly behind the prompt, as in transformers.
        sampling, stop_tokens, names, checkpoints: as for a `Generator`; `names` are those of the decoder.

    Raises `InputError` as a `Generator` does, and if an input of the decoder is no output of the encoder, or has
    another type or shape. Not thread-safe.
    """

    def __init__(
        self,
        encoder: ExecutableNetwork,
        decoder: ExecutableNetwork,
        sampling: Sampling | None = None,
        *,
        stop_tokens: Collection[int] = (),
        names: Mapping[str, str] | None = None,
        cross: Mapping[str, str] | None = None,
        begin_suppress_tokens: Collection[int] = (),
        checkpoints: int = 0,
    ) -> None:
        self._encoder = encoder
        self._cross = CrossInputs(
            encoder.signature, decoder.signature, given_names(names), {} if cross is None else cross
        )
        self._encoder_request = encoder.create_infer_request()
        self._encoded = _NOTHING
        """The decoder's inputs, a row for each sequence that was encoded."""
        self._rows: list[int] = []
        """The row of each sequence."""
        self._taken = _NOTHING
        """These rows."""
        self._first_length = 0
        """The number of tokens of the prompt."""
        super().__init__(decoder, sampling, stop_tokens=stop_tokens, names=names, checkpoints=checkpoints)
        suppressed = sorted(checked_stop_tokens(begin_suppress_tokens, "begin_suppress_tokens"))
        if suppressed and (suppressed[0] < 0 or (self.vocabulary is not None and suppressed[-1] >= self.vocabulary)):
            raise InputError(f"begin_suppress_tokens has {suppressed!r:.80}; expected tokens of the model")
        self._begin_suppress_tokens = suppressed

    @property
    def encoder_request(self) -> AsyncInferRequest:
        """The request of the encoder; its `cancel` stops an `encode` that another thread runs."""
        return self._encoder_request

    def encode(self, inputs: Mapping[str, object] | Tokens) -> None:
        """Run the encoder, and forget all tokens: what follows is generated for these inputs.

        Args:
            inputs: by name; or the value of the only input, such as the features of sound [batch, bins, frames]; or the
                tokens of a sequence or of several, of which shorter ones are padded and masked.

        Raises the errors of the request, such as `InputError` for features of another length, and leaves the generator
        as it was.
        """
        given = self._given(inputs)
        self._encoder_request.clear_tensors()  # an input that is missing is an error, not the one of the last time
        result = self._encoder_request.infer(given)
        found = {port.name: np.asarray(result[port.name]) for port in self._encoder.outputs}
        known = {name: self._encoder_request.get_input_tensor(name) for name in given}
        values = self._cross.values(known, found)
        self.reset()
        # Copies, since the caller may change inputs, and the next inference of the encoder its results.
        self._encoded = {name: np.array(value, order="C") for name, value in values.items()}
        self._rows = list(range(len(next(iter(values.values())))))
        self._taken = self._encoded

    def reset(self) -> None:
        """Forget all tokens, so that the next prompt starts a new text for what was encoded."""
        super().reset()
        if self._encoded:
            self._rows = list(range(len(next(iter(self._encoded.values())))))
            self._taken = self._encoded

    def append(self, tokens: Tokens) -> None:
        """Append tokens to the sequence, or to each sequence of a batch: see `Generator.append`."""
        super().append(tokens)
        if self._sequences is not None and not self._sequences.computed:
            self._first_length = self._sequences.length

    @property
    def forbidden_tokens(self) -> list[int]:
        """The tokens that are not chosen next: `begin_suppress_tokens` behind the prompt."""
        is_first = self._sequences is not None and self._sequences.length == self._first_length
        return self._begin_suppress_tokens if is_first else []

    def fork(self) -> EncoderDecoder:
        """A generator that continues from the same tokens and the same encoded inputs; `encode` of one does not change
        the other.
        """
        made = super().fork()
        made._encoder_request = self._encoder.create_infer_request()
        return made

    # -- internals --------------------------------------------------------------------------------------------

    def _given(self, inputs: object) -> Mapping[str, object]:
        if isinstance(inputs, Mapping):
            return inputs
        signature = self._encoder.signature
        names = [port.name for port in signature.inputs]
        if IDS not in names:
            if len(names) != 1:
                raise InputError(f"{signature.network} has the inputs {', '.join(names)}; pass them by name")
            return {names[0]: inputs}
        rows = checked_rows(inputs, None, largest_token(signature, IDS))  # type: ignore[arg-type]
        batch = Batch.empty(len(rows), None).extended(rows)
        if MASK not in names and not batch.mask.all():
            raise InputError(f"{signature.network} has no input `{MASK}`, which sequences of different lengths need")
        values = {IDS: batch.ids, MASK: batch.mask}
        types = {port.name: port.element_type.numpy for port in signature.inputs}
        return {name: np.ascontiguousarray(value, types[name]) for name, value in values.items() if name in names}

    def _further_names(self, network: ExecutableNetwork) -> frozenset[str]:
        return frozenset(self._cross.sources)

    def _further_inputs(self, known: Batch) -> dict[str, Array]:
        return self._taken

    def _check_first(self, rows: list[list[int]]) -> None:
        if not self._encoded:
            raise InputError("nothing was encoded; call encode first")
        if len(rows) != len(self._rows):
            raise InputError(f"got tokens for {len(rows)} sequences; {len(self._rows)} were encoded")

    def _follow(self, indices: Sequence[int]) -> None:
        rows = [self._rows[i] for i in indices]
        if rows != self._rows:
            self._rows, self._taken = rows, taken(self._encoded, rows)
