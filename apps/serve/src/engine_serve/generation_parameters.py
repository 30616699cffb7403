"""Parameters of the generation of tokens, with their bounds, in the names of OpenAI's API and KServe's protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.errors import InputError
from engine.generation import Sampling

_NUMBERS: Final[Mapping[str, tuple[type[Any], float, float]]] = {
    "temperature": (float, 0, 100),
    "top_p": (float, 0, 1),
    "min_p": (float, 0, 1),
    "repetition_penalty": (float, 0.01, 100),
    "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
    "top_k": (int, 0, (1 << 31) - 1),
    "seed": (int, 0, (1 << 64) - 1),
}
"""Parameters, their kinds, and the smallest and the largest values."""
_OTHERS: Final = ("max_tokens", "logit_bias", "stop", "stop_token_ids", "ignore_eos")
_PLAIN: Final[Mapping[str, Sequence[Any]]] = {
    **dict.fromkeys(("n", "best_of"), (1,)),
    **dict.fromkeys(("bad_words", "stop_words"), ([], "")),
    "min_tokens": (0,),
    **dict.fromkeys(("echo", "use_beam_search"), (False,)),
    "suffix": ("",),
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
}
"""Unsupported parameters, and the accepted values, with which they do not change the answer."""
_MAX_BIASED: Final = 1024
"""The most tokens with a bias."""
_MAX_STOPS: Final = 16
_MAX_STOP_LENGTH: Final = 256
_MAX_STOP_TOKENS: Final = 1024
_WITHOUT_EFFECT: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Parameters for OpenAI's accounting, which do not affect the answer."""


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """What a request asks for.

    Attributes:
        max_tokens: the most tokens; None if the request does not say.
        sampling: how they are chosen.
        stop: texts before which the answer ends.
        stop_tokens: further tokens after which it ends.
        ignores_stop_tokens: whether the model's own stop tokens do not end it.
    """

    max_tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    ignores_stop_tokens: bool = False


def generation_of(parameters: Mapping[str, Any]) -> GenerationOptions:
    """The options in the parameters of a request; one of None counts as omitted.

    Raises `InputError` for a value that is not valid or out of range, and for a parameter that is not supported.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    _require_supported(given)
    values = {name: number_of(name, given[name], *_NUMBERS[name]) for name in _NUMBERS if name in given}
    wanted = number_of("max_tokens", given["max_tokens"], int, 1, math.inf) if "max_tokens" in given else None
    return GenerationOptions(
        wanted,
        Sampling(**values, logit_bias=_bias(given.get("logit_bias", {}))),
        _stops(given.get("stop", [])),
        _stop_tokens(given.get("stop_token_ids", [])),
        truth_of("ignore_eos", given.get("ignore_eos", False)),
    )


def number_of(name: str, value: Any, kind: type[Any], least: float, most: float) -> Any:
    """A parameter as a number, also from a text, since parameters of KServe's messages have no fractions.

    Raises `InputError`.
    """
    try:
        short = value if not isinstance(value, str) or len(value) < 64 else None
        found = kind(short) if isinstance(short, str) or (kind is float and type(short) is int) else short
    except (ValueError, OverflowError):
        found = None
    what = "a number" if kind is float else "a whole number"
    if isinstance(found, bool) or not isinstance(found, (int, float) if kind is float else int):
        raise InputError(f"`{name}` is {value!r:.40}; expected {what}")
    if not least <= found <= most:
        upwards = f"from {least} to {most}" if most < math.inf else f"of {least} or more"
        raise InputError(f"`{name}` is {value!r:.40}; expected {what} {upwards}")
    return found


def truth_of(name: str, value: Any) -> bool:
    """A parameter that is true or false. Raises `InputError`."""
    if not isinstance(value, bool):
        raise InputError(f"`{name}` is {value!r:.40}; expected true or false")
    return value


def _stops(value: Any) -> tuple[str, ...]:
    """The texts before which an answer ends."""
    texts = [value] * bool(value) if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise InputError(f"`stop` is {value!r:.40}; expected a text, or a list of texts that are not empty")
    if len(texts) > _MAX_STOPS or any(len(text) > _MAX_STOP_LENGTH for text in texts):
        raise InputError(f"`stop` is too long; expected {_MAX_STOPS} texts of {_MAX_STOP_LENGTH} characters at most")
    return tuple(texts)


def _stop_tokens(value: Any) -> frozenset[int]:
    if not isinstance(value, list) or len(value) > _MAX_STOP_TOKENS:
        raise InputError(f"`stop_token_ids` is {value!r:.40}; expected a list of {_MAX_STOP_TOKENS} tokens at most")
    return frozenset(number_of("stop_token_ids", token, int, 0, (1 << 63) - 1) for token in value)


def _bias(value: Any) -> tuple[tuple[int, float], ...]:
    """What is added to the logits of tokens, which JSON has as texts."""
    if not isinstance(value, dict) or len(value) > _MAX_BIASED:
        found = f"{len(value)} tokens" if isinstance(value, dict) else f"{value!r:.40}"
        raise InputError(
            f'`logit_bias` is {found}; expected an object of {_MAX_BIASED} tokens at most, such as {{"15": -1}}'
        )
    return tuple(
        (number_of("logit_bias", token, int, 0, (1 << 63) - 1), number_of("logit_bias", bias, float, -100, 100))
        for token, bias in value.items()
    )


def _require_supported(parameters: Mapping[str, Any]) -> None:
    """Raise `InputError` for a parameter that would change the answer, and is not supported; and for an unknown one."""
    for name, value in parameters.items():
        if name in _NUMBERS or name in _WITHOUT_EFFECT or name in _OTHERS:
            continue
        if name not in _PLAIN:
            known = ", ".join((*_NUMBERS, *_OTHERS))
            raise InputError(f"the parameter `{name:.80}` is not supported; leave it out (supported: {known})")
        if not any(type(value) in (type(each), float) and value == each for each in _PLAIN[name]):
            raise InputError(f"the parameter `{name}` is not supported; leave it out")
