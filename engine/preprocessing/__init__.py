"""Preparing inputs and reading outputs as a part of the model: layouts, element types, images, scores.

`PrePostProcessor` adds the steps to a model; `add_steps` adds those that a text describes, as on the command line.
"""

from engine.preprocessing.axes import read_layout
from engine.preprocessing.processor import InputSteps, OutputSteps, PrePostProcessor, Steps
from engine.preprocessing.text import StepsText, add_steps, parse_steps

__all__ = [
    "InputSteps", "OutputSteps", "PrePostProcessor", "Steps", "StepsText", "add_steps", "parse_steps", "read_layout",
]  # fmt: skip
