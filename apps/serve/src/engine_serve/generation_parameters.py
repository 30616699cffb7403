"""Parameters of the generation of tokens, with their bounds, in the names of OpenAI's API and KServe's protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
_PLAIN: Final[Mapping[str, Sequence[Any]]] = {
    **dict.fromkeys(("n", "best_of"), (1,)),
    **dict.fromkeys(("stop", "stop_token_ids", "bad_words", "stop_words"), ([], "")),
    "min_tokens": (0,),
    **dict.fromkeys(("echo", "ignore_eos", "use_beam_search"), (False,)),
    "suffix": ("",),
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
}
"""Unsupported parameters, and the accepted values, with which they do not change the answer."""
_BIASED: Final = 1024
"""The most tokens with a bias."""
_WITHOUT_EFFECT: Final = frozenset({"user", "metadata", "store", "service_tier"})
"""Parameters for OpenAI's accounting, which do not affect the answer."""


def generation_of(parameters: Mapping[str, Any], most_tokens: int) -> tuple[int, Sampling]:
    """How many tokens a request asks for, by default `most_tokens`, and how they are chosen.

    A parameter of None counts as omitted. Raises `InputError` for a value that is not valid or out of range, and for a
    parameter that is not supported.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    _require_supported(given)
    values = {name: _number(name, given[name], *_NUMBERS[name]) for name in _NUMBERS if name in given}
    wanted = _number("max_tokens", given.get("max_tokens", most_tokens), int, 1, math.inf)
    return wanted, Sampling(**values, logit_bias=_bias(given.get("logit_bias", {})))


def _bias(value: Any) -> tuple[tuple[int, float], ...]:
    """What is added to the logits of tokens, which JSON has as texts."""
    if not isinstance(value, dict) or len(value) > _BIASED:
        found = f"{len(value)} tokens" if isinstance(value, dict) else f"{value!r:.40}"
        raise InputError(
            f'`logit_bias` is {found}; expected an object of {_BIASED} tokens at most, such as {{"15": -1}}'
        )
    return tuple(
        (_number("logit_bias", token, int, 0, (1 << 63) - 1), _number("logit_bias", bias, float, -100, 100))
        for token, bias in value.items()
    )


def _require_supported(parameters: Mapping[str, Any]) -> None:
    """Raise `InputError` for a parameter that would change the answer, and is not supported; and for an unknown one."""
    for name, value in parameters.items():
        if name in _NUMBERS or name in _WITHOUT_EFFECT or name in ("max_tokens", "logit_bias"):
            continue
        if name not in _PLAIN:
            known = ", ".join(("max_tokens", *_NUMBERS, "logit_bias"))
            raise InputError(f"the parameter `{name:.80}` is not supported; leave it out (supported: {known})")
        if not any(type(value) in (type(each), float) and value == each for each in _PLAIN[name]):
            raise InputError(f"the parameter `{name}` is not supported; leave it out")


def _number(name: str, value: Any, kind: type[Any], least: float, most: float) -> Any:
    """A parameter as a number, also from a text, since parameters of KServe's messages have no fractions."""
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
