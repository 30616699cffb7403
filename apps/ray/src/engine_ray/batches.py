"""A batch of Ray Data, columns of arrays, as inferences of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.errors import InputError, UnsupportedError
from engine.plugin_api import ExecutableNetwork, Port
from engine_ray.columns import column_array

Array = np.ndarray[Any, np.dtype[Any]]


def fixed_rows(name: str, inputs: Sequence[Port]) -> int | None:
    """The number of rows of each inference, the length of axis 0 of all inputs; None if it is any.

    Raises `UnsupportedError` if there are no inputs, if an input is a scalar or has length 0 along axis 0, or if two
    inputs have different lengths along it.
    """
    if not inputs:
        raise UnsupportedError(f"{name}: the network has no inputs; expected one with rows along axis 0")
    lengths: dict[str, int | None] = {}
    for port in inputs:
        if port.shape.rank.is_static and not len(port.shape):
            raise UnsupportedError(f"{name}: input `{port.name}` is a scalar; expected rows along axis 0")
        first = port.shape[0] if port.shape.rank.is_static else None
        lengths[port.name] = None if first is None or first.is_dynamic else first.get_length()
    if len(set(lengths.values())) > 1:
        raise UnsupportedError(
            f"{name}: the inputs have different lengths of axis 0, where rows are expected: {lengths}; "
            "give all of them a batch axis"
        )
    rows = next(iter(lengths.values()))
    if rows == 0:
        raise UnsupportedError(f"{name}: the length of axis 0 of the inputs is 0, so that no rows fit")
    return rows


def infer_batch(
    network: ExecutableNetwork, rows_each: int | None, batch: Mapping[str, Array], keep: Sequence[str]
) -> dict[str, Array]:
    """The outputs for the rows of a batch, in their order, and the columns `keep`.

    A network of a fixed number of rows runs as often as needed, the last time with the last row repeated.
    Raises `InputError` if columns are missing or do not fit, `UnsupportedError` if an output has other rows.
    """
    require_columns(network, batch, keep)
    inputs = {port.name: column_array(network, port.name, batch[port.name]) for port in network.inputs}
    count = len(next(iter(inputs.values())))
    parts = [
        _outputs(network, part, rows) for part, rows in _parts(inputs, count, count if rows_each is None else rows_each)
    ]
    found = {port.name: np.concatenate([part[port.name] for part in parts]) for port in network.outputs}
    return {**{name: batch[name] for name in keep}, **found}


def require_columns(network: ExecutableNetwork, batch: Mapping[str, Array], keep: Sequence[str]) -> None:
    """Raise `InputError`, naming a column of the network's inputs or of `keep` that the batch does not have."""
    missing = [name for name in (*(port.name for port in network.inputs), *keep) if name not in batch]
    if missing:
        raise InputError(
            f"{network.name}: the batch has no column `{missing[0]}`; it has {', '.join(batch)}; "
            "name the columns as the network's inputs"
        )


def _parts(inputs: Mapping[str, Array], count: int, rows: int) -> list[tuple[dict[str, Array], int]]:
    """The inputs of each inference, and how many of its rows count."""
    found = []
    for start in range(0, max(count, 1), max(rows, 1)):
        used = min(rows, count - start)
        part = {name: column[start : start + used] for name, column in inputs.items()}
        if used < rows:
            part = {name: _padded(column, rows) for name, column in part.items()}
        found.append((part, used))
    return found


def _padded(column: Array, rows: int) -> Array:
    """The rows, and as many more as are missing: the last one repeated, or zeros if there is none."""
    last = column[-1:] if len(column) else np.zeros((1, *column.shape[1:]), column.dtype)
    return np.concatenate([column, np.repeat(last, rows - len(column), axis=0)])


def _outputs(network: ExecutableNetwork, inputs: Mapping[str, Array], used: int) -> dict[str, Array]:
    rows = len(next(iter(inputs.values())))
    result = network(inputs)
    found = {}
    for port in network.outputs:
        array = np.asarray(result[port.name])
        if not array.ndim or len(array) != rows:
            raise UnsupportedError(
                f"{network.name}: output `{port.name}` has shape {list(array.shape)} for {rows} rows; "
                "expected the rows along axis 0"
            )
        found[port.name] = array[:used]
    return found
