"""Rows of a batch that fail are set aside with their reason, and the others are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from engine.errors import InferError, InputError, OutOfMemoryError
from engine.plugin_api import ExecutableNetwork, Port
from engine_ray.batches import Array, infer_batch, require_columns

_Results = dict[str, Array]
_OF_ROWS: Final = (InputError, OutOfMemoryError)
"""Beside `InferError` itself; its other subclasses are about the device or the request."""


def infer_rows(
    network: ExecutableNetwork, rows_each: int | None, batch: Mapping[str, Array], keep: Sequence[str], error: str
) -> tuple[_Results, int]:
    """The results of `infer_batch` with the column `error`, and how many rows failed.

    The column has the reason of a failed row, and an empty string for any other one. The outputs of failed rows are
    NaN, or 0, False or an empty string where the type has no NaN. A batch that fails is divided until the rows are
    found for whose values it fails. Raises `InputError` if columns are missing, and errors that are not of rows, such
    as `DeviceError`.
    """
    require_columns(network, batch, keep)
    used = {name: batch[name] for name in {port.name for port in network.inputs}}
    count = len(next(iter(used.values())))
    parts: list[tuple[int, _Results | str]] = []
    waiting = [(0, count)]
    while waiting:
        start, end = waiting.pop()
        try:
            found = infer_batch(network, rows_each, {name: column[start:end] for name, column in used.items()}, ())
            parts.append((end - start, found))
        except (InferError, OutOfMemoryError) as e:
            if type(e) is not InferError and not isinstance(e, _OF_ROWS):
                raise
            if end - start <= 1:
                parts.append((end - start, str(e)))
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
    reasons = np.concatenate([np.full(rows, part if isinstance(part, str) else "", object) for rows, part in parts])
    outputs = {port.name: _joined(port, parts) for port in network.outputs}
    failed = sum(rows for rows, part in parts if isinstance(part, str))
    return {**{name: batch[name] for name in keep}, **outputs, error: reasons}, failed


def _joined(port: Port, parts: Sequence[tuple[int, _Results | str]]) -> Array:
    """The column of an output: an array, or an array of arrays if rows have different shapes."""
    made = [part[port.name] for _, part in parts if not isinstance(part, str)]
    shapes = {each.shape[1:] for each in made}
    shape = shapes.pop() if len(shapes) == 1 else _declared(port)
    columns = [
        np.full((rows, *shape), _filling(port), made[0].dtype if made else port.dtype)
        if isinstance(part, str)
        else part[port.name]
        for rows, part in parts
    ]
    if len({each.shape[1:] for each in columns}) == 1:
        return np.concatenate(columns)
    rows_of = [row for column in columns for row in column]
    joined = np.empty(len(rows_of), object)
    joined[:] = rows_of
    return joined


def _declared(port: Port) -> tuple[int, ...]:
    """The shape of a row, with 0 for lengths that are not known."""
    if not port.shape.rank.is_static:
        return ()
    return tuple(dim.get_length() if dim.is_static else 0 for dim in list(port.shape)[1:])


def _filling(port: Port) -> object:
    if port.dtype == object:
        return ""
    return np.nan if port.element_type.is_real or port.element_type.is_complex else 0
