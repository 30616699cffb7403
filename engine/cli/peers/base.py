"""`Peer`: a model in another engine, and what all of them need."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError, InferError, PropertyError, UnsupportedError

THREADS: Final = "INFERENCE_NUM_THREADS"
STREAMS: Final = "NUM_STREAMS"
PRECISION: Final = "INFERENCE_PRECISION_HINT"
HINT: Final = "PERFORMANCE_HINT"
KNOWN: Final = (THREADS, STREAMS, PRECISION, HINT)
"""The properties of this engine that peers have an equivalent of."""

Call: TypeAlias = Callable[[Mapping[str, Any]], list[NDArray[Any]]]
"""Runs one inference: inputs by name, outputs in the model's order. Not for several threads at once."""


class Peer(ABC):
    """A model that another engine has loaded."""

    version: str
    configuration: Mapping[str, Any]
    """The settings in that engine's own terms."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @abstractmethod
    def make_call(self) -> Call:
        """A function that runs inferences, for one thread. It raises `InferError`."""

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Run one inference; new arrays, by name. Raises `InferError`."""
        results = self.make_call()(inputs)
        return {name: np.array(value) for name, value in zip(self.outputs, results, strict=True)}


def import_peer(name: str) -> Any:
    """The peer's module. Raises `UnsupportedError` that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise UnsupportedError(f"{name} cannot be imported ({e}); install it: pip install engine-sdk[{name}]") from e


def require_known(name: str, settings: Mapping[str, str], known: Collection[str]) -> None:
    """Raise `PropertyError` for a setting that the peer has no equivalent of."""
    for key in settings:
        if key not in known:
            raise PropertyError(f"{name} has no equivalent of {key}; of this engine's properties, it knows: "
                                f"{', '.join(sorted(known))}")  # fmt: skip


def threads_of(settings: Mapping[str, str]) -> int:
    """Threads of one inference; 0 if the engine chooses. Raises `PropertyError`."""
    threads, streams = (_whole(settings, key) for key in (THREADS, STREAMS))
    return max(1, threads // max(streams, 1)) if threads else 0


def _whole(settings: Mapping[str, str], key: str) -> int:
    text = settings.get(key, "0")
    try:
        return int(text)
    except ValueError:
        raise PropertyError(f"{key} is {text!r}; expected a whole number") from None


def peer_error(name: str, action: str, error: Exception, kind: type[EngineError] = InferError) -> EngineError:
    """A peer's error in one line."""
    return kind(f"{name} cannot {action}: {' '.join(str(error).split())[:400] or type(error).__name__}")
