"""Columns of a batch of Ray Data as arrays; rows of list columns are arrays of objects, or nested lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import InputError, ModelError
from engine.plugin_api import ExecutableNetwork, Port
from engine.runtime.numbers import MAX_AXES, array_of_numbers, types_in

Array = np.ndarray[Any, np.dtype[Any]]


def column_array(network: ExecutableNetwork, name: str, column: Array) -> Array:
    """A column as an array with rows along axis 0; one of lists, as Parquet's `list<float>`, if all have one shape.

    Numbers of Python become the input's element type, as where the network itself takes lists; arrays keep theirs.
    Raises `InputError` for rows of different shapes, masked arrays, and what is not a number.
    """
    port = network.input(name)
    where = f"{network.name}: column `{name}`"
    _require_unmasked(where, column)
    if column.dtype != object or port.dtype == object:
        return column
    if not len(column):
        lengths = [dim.get_length() if dim.is_static else 1 for dim in port.shape] if port.shape.rank.is_static else [0]
        return np.empty([0, *lengths[1:]], port.dtype)
    rows = [_row(f"{where}, row {index}", row, port) for index, row in enumerate(column)]
    shape = rows[0].shape
    for index, row in enumerate(rows):
        if row.shape != shape:
            raise InputError(
                f"{where} has rows of different shapes: row 0 has {list(shape)}, and row {index} {list(row.shape)}; "
                "pad them to one shape in a batch"
            )
    return np.stack(rows)


def _row(where: str, row: object, port: Port, depth: int = 0) -> Array:
    """A row of a column of objects: an array, or lists in lists. Raises `InputError` for anything else."""
    if isinstance(row, np.ndarray):
        _require_unmasked(where, row)
        if row.dtype == object:
            row = row.tolist()
    if isinstance(row, np.ndarray | np.generic):
        return _real(where, row)
    try:
        found = types_in(row)
        if isinstance(row, list | tuple):
            if found and all(issubclass(each, np.generic) for each in found):
                return _real(where, np.array(row))
            if any(issubclass(each, np.ndarray | np.generic) for each in found):
                if depth == MAX_AXES:
                    raise ModelError(f"its lists are nested more than {MAX_AXES} deep")
                return _stacked(where, [_row(where, part, port, depth + 1) for part in row])
        if wrong := [each.__name__ for each in found if not issubclass(each, int | float | complex)]:
            raise _not_numbers(where, "a missing value" if "NoneType" in wrong else f"a {min(wrong)}")
        return array_of_numbers(row, port.element_type)
    except (ModelError, ValueError) as e:
        raise InputError(f"{where}: {e}") from e


def _stacked(where: str, parts: list[Array]) -> Array:
    """Lists of arrays, and of numpy's numbers: they keep their types."""
    shapes = sorted({part.shape for part in parts})
    if len(shapes) > 1:
        raise InputError(f"{where} has lists of different shapes, {shapes[0]} and {shapes[-1]}; pad them to one")
    return np.stack(parts)


def _real(where: str, value: Array | np.generic) -> Array:
    if value.dtype.kind in "OSUMm":
        raise _not_numbers(where, f"an array of {value.dtype.name}")
    return np.asarray(value)


def _not_numbers(where: str, found: str) -> InputError:
    return InputError(f"{where} has {found}; expected numbers, or lists of them")


def _require_unmasked(where: str, array: Array) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise InputError(f"{where} has a masked array, which would lose its mask; fill it first")
