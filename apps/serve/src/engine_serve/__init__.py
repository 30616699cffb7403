"""Serving models over the Open Inference Protocol, by KServe's server (`engine serve`).

Most other modules need KServe, and are imported after `packages.require_packages`. Importing this package imports
nothing, so that `engine --help` can list the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_serve.model_config import Batching, Encoder, Generation, ModelConfig, read_config

__all__ = ["Batching", "Encoder", "Generation", "ModelConfig", "read_config"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from engine_serve import model_config

    return getattr(model_config, name)
