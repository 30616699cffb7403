"""How long a client waits for an answer, according to its request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from engine.errors import InputError

CALL_SECONDS: Final[ContextVar[float | None]] = ContextVar("CALL_SECONDS", default=None)
"""The remaining time of a gRPC call's deadline, in seconds."""

_ENVOY: Final = "x-envoy-expected-rq-timeout-ms"
_GRPC: Final = "grpc-timeout"
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def seconds_left(
    headers: Mapping[str, str] | None, parameters: Mapping[str, Any] | None, default_ms: float | None
) -> float | None:
    """The shortest time that the client states, otherwise the default, in seconds; None if there is no deadline.

    A client can state it as the deadline of a call of gRPC; in the headers `grpc-timeout` ("250m") and
    `x-envoy-expected-rq-timeout-ms`, which proxies set; and, as Triton's clients do, in the parameter `timeout` of the
    request (microseconds). Raises `InputError` for a value that is not a valid time.
    """
    stated = [CALL_SECONDS.get()]
    given = headers or {}
    if _GRPC in given:
        stated.append(_grpc_seconds(given[_GRPC]))
    if _ENVOY in given:
        stated.append(_number(_ENVOY, given[_ENVOY]) / 1e3)
    if parameters and parameters.get("timeout") not in (None, 0, "0"):
        stated.append(_number("the parameter `timeout`", parameters["timeout"]) / 1e6)
    found = [each for each in stated if each is not None]
    if found:
        return min(found)
    return None if default_ms is None else default_ms / 1e3


def _grpc_seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,8})([HMSmun])", text, re.ASCII)
    if found is None:
        raise InputError(f"the header {_GRPC} is {text!r:.40}; expected at most 8 digits and a unit, such as 250m")
    return int(found[1]) * _UNITS[found[2]]


def _number(name: str, value: Any) -> float:
    text = str(value)
    if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
        raise InputError(f"{name} is {text!r:.40}; expected a whole number of 0 or more")
    return float(text)
