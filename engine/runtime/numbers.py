"""Python's numbers, and lists of them, as the arrays that inputs take."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelError
from engine.ir import ElementType, boolean, string

MAX_AXES: Final = 64  # of numpy


def array_of_numbers(value: object, element_type: ElementType) -> NDArray[Any]:
    """A number, a text, or lists of them to any depth, as an array of this type; floats are rounded.

    The lists may also have numpy scalars and arrays of this very type. Raises `ModelError` for lists of unequal
    lengths, other objects, and numbers that are not of the type's kind or exceed its range.
    """
    expected, own = _kinds(element_type), np.dtype(element_type.numpy)
    found = _kinds_in(value)
    if wrong := found - expected - {own}:
        names = " or ".join(sorted(each.__name__ for each in expected)) or "arrays"
        raise ModelError(f"it holds a {min(map(_name, wrong))}; expected {names} for {element_type}")
    try:
        array = np.asarray(value, own if own in found and len(found) == 1 else _exact(element_type))
    except ValueError as e:
        raise ModelError(f"its lists have unequal lengths: {e}") from e
    except OverflowError as e:
        raise ModelError(f"not every number fits {element_type}: {e}") from e
    if found == {own} and element_type is not string:
        return array
    from engine.ir import Constant

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


def _kinds_in(value: object) -> set[Any]:
    """The types of all elements of nested lists, and the dtypes of arrays and numpy's scalars in place of theirs."""
    types = types_in(value)
    found: set[Any] = {each for each in types if not issubclass(each, np.ndarray | np.generic)}
    if len(found) < len(types):
        _add_dtypes(value, found)
    return found


def _kinds(element_type: ElementType) -> set[type]:
    if element_type is string:
        return {str}
    if element_type is boolean:
        return {bool}
    if element_type.is_integral:
        return {int}
    return {int, float, complex} if element_type.is_complex else {int, float}


def _exact(element_type: ElementType) -> Any:
    """The numpy type that holds Python's numbers of the type's kind: numpy would make f64 of large integers."""
    if element_type is string:
        return object
    if element_type.is_integral:
        return np.int64 if element_type.is_signed else np.uint64
    return np.float64 if element_type.is_real else None


def _name(found: Any) -> str:
    """The name of the type of an element, or the dtype of an array."""
    return f"numpy {found}" if isinstance(found, np.dtype) else str(found.__name__)


def _collect(value: object, found: set[type], depth: int) -> None:
    if not isinstance(value, list | tuple):
        found.add(type(value))
        return
    if depth == MAX_AXES:
        raise ModelError(f"its lists are nested more than {MAX_AXES} deep")
    types = set(map(type, value))
    lists = {each for each in types if issubclass(each, list | tuple)}
    found |= types - lists
    for element in value if lists else ():
        if type(element) in lists:
            _collect(element, found, depth + 1)


def _add_dtypes(value: object, found: set[Any]) -> None:
    if isinstance(value, list | tuple):
        for element in value:
            _add_dtypes(element, found)
    elif isinstance(value, np.str_):
        found.add(str)
    elif isinstance(value, np.generic) or type(value) is np.ndarray:
        found.add(value.dtype)
    elif isinstance(value, np.ndarray):  # a subclass, whose mask, for example, would be lost
        found.add(type(value))
