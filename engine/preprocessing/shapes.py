"""`passed_shape`: the shape that an application passes, from the shape of the model's input."""

from __future__ import annotations

from engine.errors import ModelError, PreprocessingError
from engine.ir import PartialShape
from engine.ir.shape import Dimension, DimensionLike
from engine.preprocessing.colour import CHANNELS, CHROMA, PLANE_CHANNELS, PLANES, ToColour
from engine.preprocessing.layout import check_rank
from engine.preprocessing.plan import InputPlan


def passed_shape(plan: InputPlan, goal: PartialShape, goal_layout: str, layout: str, suffix: str) -> PartialShape:
    """The shape of the application's tensor, from the model and from the given shape."""
    known = _derived(plan, goal, goal_layout, layout, suffix) if layout else goal
    if plan.shape is None:
        return known
    if plan.shape.rank.is_static and layout:
        check_rank(layout, len(plan.shape), f"the given shape {plan.shape}")
    given = plan.shape
    if suffix in CHROMA and given.rank.is_static:
        lengths = [None if letter == "C" else dim for letter, dim in zip(layout, given, strict=True)]
        halves = [_half(letter, dim) if letter in "HW" else dim for letter, dim in zip(layout, lengths, strict=True)]
        given = PartialShape(halves)
    try:
        return given.merge(known)
    except ModelError as e:
        raise PreprocessingError(f"the given shape {plan.shape} cannot be {known}, which the model needs: {e}") from e


def _derived(plan: InputPlan, goal: PartialShape, goal_layout: str, layout: str, suffix: str) -> PartialShape:
    is_resized = any(step.changes_size for step in plan.steps)
    is_recoloured = any(isinstance(step, ToColour) for step in plan.steps)
    dims: list[DimensionLike] = []
    for letter in layout:
        position = goal_layout.find(letter)
        known = goal[position] if position >= 0 and goal.rank.is_static else None
        if letter == "C" and plan.colour:
            known = Dimension(PLANE_CHANNELS[suffix] if plan.colour in PLANES else CHANNELS[plan.colour])
        elif (letter == "C" and is_recoloured) or (letter in "HW" and is_resized):
            known = None
        elif letter in "HW" and plan.colour in PLANES and known is not None:
            known = _plane_length(letter, known, suffix)
        elif letter == "N" and position < 0:
            known = Dimension(1)
        elif letter == "N" and suffix and known is not None and known.is_dynamic and known.symbol is None:
            known = None
        if known is None and plan.colour in PLANES:
            known = _common(plan.name, letter, suffix)
        dims.append(known)
    return PartialShape(dims)


def _common(name: str, letter: str, suffix: str) -> Dimension | None:
    """A length of video that is not known: with a length of 1, planes that do not belong together would fit."""
    if letter == "N":
        return Dimension(symbol=f"{name}_batch") if suffix else None
    return Dimension.at_least(1 if suffix in CHROMA else 3 if letter == "H" and not suffix else 2)


def _plane_length(letter: str, length: Dimension, suffix: str) -> Dimension | None:
    if length.is_dynamic:
        return None
    half = _half(letter, length)
    assert half is not None
    if not suffix and letter == "H":
        return Dimension(3 * half.get_length())
    return half if suffix in CHROMA else length


def _half(letter: str, length: Dimension | None) -> Dimension | None:
    """Half of a length of video, None if it is not known. Raises `PreprocessingError` if it is odd."""
    if length is None or length.is_dynamic:
        return None
    if length.get_length() % 2:
        raise PreprocessingError(f"video has even heights and widths, but {letter} is {length}; resize it")
    return Dimension(length.get_length() // 2)
