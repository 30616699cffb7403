"""Serving models over the Open Inference Protocol, by KServe's server (`engine serve`).

The other modules need the packages of the extra `serve`, and are imported after `packages.require_packages`.
"""

from engine.serving.model_config import Batching, Generation, ModelConfig, read_config

__all__ = ["Batching", "Generation", "ModelConfig", "read_config"]
