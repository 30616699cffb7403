"""Serving models over the Open Inference Protocol, by KServe's server (`engine serve`).

The modules that need the packages of the extra `serve` are imported only after `require_packages`.
"""

from engine.serving.model_config import Batching, ModelConfig, read_config
from engine.serving.packages import require_packages

__all__ = ["Batching", "ModelConfig", "read_config", "require_packages"]
