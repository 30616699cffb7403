"""The plan for an input or an output: the application's tensor, and the steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field

from engine.errors import ModelError, PreprocessingError
from engine.ir import ElementType, PartialShape
from engine.preprocessing.step import Step
from engine.startup import dataclass


@contextmanager
def located(where: str) -> Iterator[None]:
    """Prefix errors with the place of the step."""
    try:
        yield
    except ModelError as e:  # or the error of an operator that a step adds
        raise PreprocessingError(f"{where}: {e}") from e


@dataclass(slots=True)
class InputPlan:
    """The tensor that an application passes, and the steps to the model's input; "" and None are the model's."""

    name: str
    element_type: ElementType | None = None
    layout: str = ""
    shape: PartialShape | None = None
    colour: str = ""
    model_layout: str = ""
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        return f"input `{self.name}`"


@dataclass(slots=True)
class OutputPlan:
    """The steps from a model's result to the application's output."""

    name: str
    model_layout: str = ""
    steps: list[Step] = field(default_factory=list)
    new_name: str = ""

    def __str__(self) -> str:
        return f"output `{self.name}`"
