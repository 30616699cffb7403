"""Generating tokens with a stateful language model: see `Generator`."""

from engine.generation.generator import Generator
from engine.generation.measurement import GenerationTimes, measure_generation
from engine.generation.sampling import Sampling

__all__ = ["GenerationTimes", "Generator", "Sampling", "measure_generation"]
