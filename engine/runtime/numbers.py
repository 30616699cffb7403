"""Python's numbers, and lists of them, as the arrays that inputs take."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelError
from engine.ir import Constant, ElementType, boolean, string

MAX_AXES: Final = 64  # of numpy


def array_of_numbers(value: object, element_type: ElementType) -> NDArray[Any]:
    """A number, a text, or lists of them to any depth, as an array of this type; floats are rounded.

    Raises `ModelError` for lists of unequal lengths, other objects, and numbers that are not of the type's kind or
    exceed its range.
    """
    expected = _kinds(element_type)
    if wrong := types_in(value) - expected:
        names = " or ".join(sorted(each.__name__ for each in expected)) or "arrays"
        raise ModelError(f"it holds a {min(each.__name__ for each in wrong)}; expected {names} for {element_type}")
    try:
        array = np.asarray(value, object if element_type is string else np.float64 if element_type.is_real else None)
    except ValueError as e:
        raise ModelError(f"its lists have unequal lengths: {e}") from e
    except OverflowError as e:
        raise ModelError(f"not every number fits {element_type}: {e}") from e
    if array.dtype == object and element_type is not string:
        raise ModelError(f"not every number fits {element_type}")
    try:
        made: NDArray[Any] = Constant(array, element_type).data
    except ModelError as e:
        raise ModelError(f"not every element fits {element_type}: {e}") from e
    if element_type.is_real and not np.array_equal(np.isfinite(array), np.isfinite(made)):
        raise ModelError(f"not every number fits {element_type}: the largest is {np.max(np.abs(array)):g}")
    return made


def types_in(value: object) -> set[type]:
    """The types of all elements of nested lists. Raises `ModelError` if they are deeper than arrays can be."""
    found: set[type] = set()
    _collect(value, found, 0)
    return found


def _kinds(element_type: ElementType) -> set[type]:
    if element_type is string:
        return {str}
    if element_type is boolean:
        return {bool}
    if element_type.is_integral:
        return {int}
    return {int, float, complex} if element_type.is_complex else {int, float}


def _collect(value: object, found: set[type], depth: int) -> None:
    """Add the types of all elements of nested lists."""
    if not isinstance(value, (list, tuple)):
        found.add(type(value))
        return
    if depth == MAX_AXES:
        raise ModelError(f"its lists are nested more than {MAX_AXES} deep")
    types = set(map(type, value))
    lists = {each for each in types if issubclass(each, (list, tuple))}
    found |= types - lists
    for element in value if lists else ():
        if type(element) in lists:
            _collect(element, found, depth + 1)
