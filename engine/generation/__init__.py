"""Generating tokens with a stateful language model: see `Generator`."""

from engine.generation.adapter import Adapter, read_adapter
from engine.generation.beam_search import BeamSearch, Hypothesis
from engine.generation.constraint import Constraint
from engine.generation.cross_states import with_cross_states
from engine.generation.encoder_decoder import EncoderDecoder
from engine.generation.encoder_decoder_folder import EncoderDecoderFolder, read_encoder_decoder_folder
from engine.generation.genai_folder import GenaiFolder, read_genai_folder
from engine.generation.generator import Generator
from engine.generation.log_probabilities import TokenLogProbabilities
from engine.generation.measurement import GenerationTimes, measure_generation
from engine.generation.sampling import Sampling
from engine.generation.scheduler import Scheduler
from engine.generation.scheduler_statistics import SchedulerStatistics
from engine.generation.speculation import Draft, PromptLookup, SpeculationStatistics
from engine.generation.stream import Stream
from engine.generation.text import TextStream, Tokenizer, read_tokenizer
from engine.generation.vision_language import VisionLanguage
from engine.generation.vision_language_folder import VisionLanguageFolder, read_vision_language_folder

__all__ = [
    "Adapter",
    "BeamSearch",
    "Constraint",
    "Draft",
    "EncoderDecoder",
    "EncoderDecoderFolder",
    "GenaiFolder",
    "GenerationTimes",
    "Generator",
    "Hypothesis",
    "PromptLookup",
    "Sampling",
    "Scheduler",
    "SchedulerStatistics",
    "SpeculationStatistics",
    "Stream",
    "TextStream",
    "TokenLogProbabilities",
    "Tokenizer",
    "VisionLanguage",
    "VisionLanguageFolder",
    "measure_generation",
    "read_adapter",
    "read_encoder_decoder_folder",
    "read_genai_folder",
    "read_tokenizer",
    "read_vision_language_folder",
    "with_cross_states",
]
