"""The precision of products: whether this CPU multiplies bf16, and fast enough to be worth its error."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Final

from engine.errors import PropertyError
from engine.native import ProductRates, features, has_feature, product_rates
from engine.plugin_api import Config, Property
from engine_cpu.properties import (
    DYNAMIC_QUANTIZATION_GROUP_SIZE,
    EXECUTION_MODE_HINT,
    INFERENCE_PRECISION_HINT,
    KV_CACHE_PRECISION,
)

logger = logging.getLogger("engine.cpu")

_INEXACT: Final[tuple[Property[Any], ...]] = (
    INFERENCE_PRECISION_HINT,
    KV_CACHE_PRECISION,
    DYNAMIC_QUANTIZATION_GROUP_SIZE,
)
_BYTE_PRODUCTS: Final = frozenset({"avxvnni", "vnni", "amx_int8", "dotprod", "i8mm"})
_MIN_GAIN: Final = 1.2
"""The ratio of the rates from which a network in bf16, which also converts, is not slower than in f32."""


def is_accurate(config: Config) -> bool:
    """Whether all inexact choices are excluded. Raises `PropertyError` if another property requests one."""
    if config[EXECUTION_MODE_HINT] != "ACCURACY":
        return False
    for inexact in _INEXACT:
        if config[inexact] != inexact.default:
            raise PropertyError(
                f"{EXECUTION_MODE_HINT.name} is ACCURACY, but {inexact.name} is {config[inexact]}; expected "
                f"{inexact.default}: omit one of them"
            )
    return True


def precision_of(config: Config, isa: str, *, is_here: bool = True) -> str:
    """The precision of products: bf16 if it is configured and faster than f32 on this CPU; otherwise f32.

    Another CPU than this (not `is_here`) cannot be measured: bf16 then if it has such products at all. Logs once in a
    process why a hint was ignored, or that the hint would be worth setting.
    """
    refused = _refusal(isa, is_here=is_here)
    if config[INFERENCE_PRECISION_HINT] == "bf16":
        if refused:
            logger.warning(
                "INFERENCE_PRECISION_HINT is bf16, but %s CPU %s: computing in f32, with large weights in bf16",
                "this" if is_here else "the target's",
                refused,
            )
            return "f32"
    elif not refused and is_here:
        _advise()
    return str(config[INFERENCE_PRECISION_HINT])


def remark_on(config: Config, isa: str, precision: str, *, rounds_weights: bool, is_here: bool = True) -> str | None:
    """Why a network computes in another precision than requested; None if it does not."""
    asked = config[INFERENCE_PRECISION_HINT]
    if asked == precision:
        return None
    refused = _refusal(isa, is_here=is_here)
    cpu = "this CPU" if is_here else "the target's CPU"
    why = f"{cpu} {refused}; computing in {precision}" if refused else f"it was compiled for {precision}"
    scope = "applies to large weights only" if rounds_weights else "is ignored"
    return f"{INFERENCE_PRECISION_HINT.name} is {asked}, and {scope}: {why}"


def why_not_bf16(isa: str, rates: ProductRates | None) -> str | None:
    """Why products of bf16 are not faster than products of f32 with an instruction set; None if they are.

    `rates` are the vector instructions' rates, on which tiles do not depend.
    """
    if has_feature(isa, "amx_bf16"):
        return None
    if not has_feature(isa, "bf16") or rates is None:
        return "has no bf16 instructions"
    if rates.bf16 < _MIN_GAIN * rates.f32:
        return f"multiplies bf16 {rates.bf16 / rates.f32:.1f} times as fast as f32"
    return None


def multiplies_bytes(isa: str) -> bool:
    """Whether products of 8-bit integers are several times as fast as products of f32 with an instruction set."""
    return not _BYTE_PRODUCTS.isdisjoint(features(isa))


def _refusal(isa: str, *, is_here: bool) -> str | None:
    """Why products of bf16 are refused; of another CPU, only that it has none."""
    if not is_here and has_feature(isa, "bf16"):
        return None
    return why_not_bf16(isa, product_rates() if is_here else None)


@cache
def _advise() -> None:
    logger.info("this CPU multiplies bf16 faster than f32: networks that tolerate it may set %s to bf16",
                INFERENCE_PRECISION_HINT.name)  # fmt: skip
