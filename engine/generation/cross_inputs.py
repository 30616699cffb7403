"""`CrossInputs`: the inputs of a decoder that an encoder computes, such as the keys and values of cross-attention."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.generation.adapted import adapter_inputs
from engine.generation.roles import RANKS
from engine.plugin_api import Signature

Array = NDArray[Any]

_HIDDEN: Final = ("encoder_hidden_states", "last_hidden_state", "hidden_states")
_MASK: Final = ("encoder_attention_mask", "attention_mask")
_PATTERNS: Final = (
    (re.compile(r"past_key_values\.(\d+)\.encoder\.(key|value)"), r"present.\1.encoder.\2"),
    (re.compile(r"past_(key|value)_cross_(\d+)"), r"present_\1_cross_\2"),
)
"""Names of a decoder's inputs, and of the encoder's outputs: of Optimum, and of onnxruntime-genai's builder."""


class CrossInputs:
    """Which output or input of an encoder is the value of which input of a decoder. Immutable.

    Attributes:
        sources: the name at the encoder, by the name at the decoder.

    Raises `InputError` if an input of the decoder has no source, or one of another type or shape.
    """

    def __init__(
        self, encoder: Signature, decoder: Signature, names: Mapping[str, str], given: Mapping[str, str]
    ) -> None:
        if not isinstance(given, Mapping):
            raise InputError(f"cross is {given!r:.80}; expected outputs of the encoder by inputs of the decoder")
        self._decoder = decoder
        own = {names.get(role, role) for role in RANKS} | adapter_inputs(decoder)
        wanted = [port.name for port in decoder.inputs if port.name in given or port.name not in own]
        for name in given:
            decoder.find_input(name)  # raises, listing the inputs
        self.sources = {name: self._source(encoder, name, given) for name in wanted}
        if not self.sources:
            raise InputError(
                f"{decoder.network}: no input has values of the encoder; expected the keys and values of "
                "cross-attention, such as `past_key_values.0.encoder.key`, or `encoder_hidden_states`"
            )
        for name, source in self.sources.items():
            port = decoder.inputs[decoder.find_input(name)]
            ports = encoder.outputs if source in {each.name for each in encoder.outputs} else encoder.inputs
            found = next(each for each in ports if each.name == source)
            if port.element_type is not found.element_type or not port.shape.compatible(found.shape):
                raise InputError(
                    f"{decoder.network}: input `{name}` is {port.type}, and `{source}` of {encoder.network} "
                    f"{found.type}; expected the encoder of this decoder"
                )

    def values(self, given: Mapping[str, Array], found: Mapping[str, Array]) -> dict[str, Array]:
        """The decoder's inputs, of the encoder's inputs and outputs. Raises `InputError` if their rows differ."""
        made = {name: found[source] if source in found else given[source] for name, source in self.sources.items()}
        counts = {name: value.shape[0] if value.ndim else 0 for name, value in made.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"`{name}` {count}" for name, count in counts.items())
            raise InputError(f"{self._decoder.network}: the encoder gives different numbers of sequences: {listed}")
        return made

    @staticmethod
    def _source(encoder: Signature, name: str, given: Mapping[str, str]) -> str:
        inputs, outputs = [port.name for port in encoder.inputs], [port.name for port in encoder.outputs]
        if name in given:
            if given[name] not in (*outputs, *inputs):
                raise InputError(f"{encoder.network}: no output or input `{given[name]}`; it has {', '.join(outputs)}")
            return given[name]
        wanted = [name, *(pattern.sub(output, name) for pattern, output in _PATTERNS if pattern.fullmatch(name))]
        wanted += _HIDDEN if name == _HIDDEN[0] else _MASK if name == _MASK[0] else ()
        found = [each for each in wanted if each in outputs] or [
            each for each in wanted if each in inputs and name == _MASK[0]
        ]
        if not found:
            raise InputError(
                f"{encoder.network} has no output for the decoder's input `{name}`; expected `{wanted[-1]}`, found "
                f"{', '.join(outputs)}. If another one has its value, name it: cross={{{name!r}: output}}; if the "
                "decoder computes it from the encoder's result, see engine.generation.with_cross_states; if it is a "
                "past value, make the decoder stateful: engine.passes.MakeStateful"
            )
        return found[0]


def taken(values: Mapping[str, Array], rows: Sequence[int]) -> dict[str, Array]:
    """The values of these sequences; the same arrays if they are all, in their order."""
    count = len(next(iter(values.values())))
    if list(rows) == list(range(count)):
        return dict(values)
    return {name: np.ascontiguousarray(value[list(rows)]) for name, value in values.items()}
