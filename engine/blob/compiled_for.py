"""Whether a blob was compiled for the settings that the configuration of its import requests."""

from __future__ import annotations

from engine.errors import UnsupportedError


def check_precision(network: str, made: str, asked: str) -> None:
    """Raise `UnsupportedError` if a blob was compiled for a precision other than the one configured for its import."""
    if made != asked:
        raise UnsupportedError(
            f"{network}: the blob was compiled for {made}, but INFERENCE_PRECISION_HINT is {asked}; "
            "omit the hint, or compile the model again with it"
        )


def check_mode(network: str, *, made_accurate: bool, is_accurate: bool) -> None:
    """Raise `UnsupportedError` if ACCURACY is configured for the import of a blob that was compiled without."""
    if is_accurate and not made_accurate:
        raise UnsupportedError(
            f"{network}: the blob was compiled for PERFORMANCE, but EXECUTION_MODE_HINT is ACCURACY; omit the hint, or "
            "compile the model again with it"
        )
