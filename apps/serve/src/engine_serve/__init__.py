"""Serving models over the Open Inference Protocol, by KServe's server (`engine serve`).

Most other modules need KServe, and are imported after `packages.require_packages`.
"""

from engine_serve.model_config import Batching, Generation, ModelConfig, read_config

__all__ = ["Batching", "Generation", "ModelConfig", "read_config"]
