"""Generating tokens with a stateful language model: see `Generator`."""

from engine.generation.generator import Generator
from engine.generation.sampling import Sampling

__all__ = ["Generator", "Sampling"]
