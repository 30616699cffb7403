"""The positions of tokens in time, height and width, for models that also see pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.startup import dataclass

Array = NDArray[Any]

GRID: Final = "image_grid_thw"


@dataclass(frozen=True, slots=True)
class Grid:
    """The places of a picture: rows and columns of merged patches."""

    height: int
    width: int

    @property
    def places(self) -> int:
        """Their number."""
        return self.height * self.width


def grids_of(given: Any, merged: int) -> list[Grid]:
    """The grids of pictures [pictures, 3]: patches in time, height and width. Raises `InputError`."""
    try:
        found = np.asarray(given)
    except (ValueError, TypeError) as e:
        raise InputError(f"`{GRID}` is {given!r:.80}; expected integers [pictures, 3]") from e
    if found.ndim != 2 or found.shape[1] != 3 or found.dtype.kind not in "iu":
        raise InputError(f"`{GRID}` has shape {found.shape} and type {found.dtype}; expected integers [pictures, 3]")
    made = []
    for time, height, width in found.tolist():
        if time != 1:
            raise InputError(f"`{GRID}` has {time} patches in time; expected 1: films are not supported")
        if height < 1 or width < 1 or height % merged or width % merged:
            raise InputError(
                f"`{GRID}` has {height} x {width} patches; expected multiples of {merged}, the merged ones"
            )
        made.append(Grid(height // merged, width // merged))
    return made


def positions_of(tokens: Sequence[int], grids: Sequence[Grid], image_token: int) -> Array:
    """The positions [3, tokens] in time, height and width, as Qwen2-VL defines them (Wang et al. 2024, section 2.1).

    The places of a picture have one time, and the rows and columns of their grid, from the position that a token would
    have there. The token behind is one after the greatest of them.
    """
    ids = np.asarray(tokens)
    made = np.empty((3, len(ids)), np.int64)
    places = np.flatnonzero(ids == image_token)
    place = column = start = 0
    for grid in grids:
        first = int(places[place])
        made[:, column:first] = start + np.arange(first - column)
        start += first - column
        end = first + grid.places
        rows, columns = np.divmod(np.arange(grid.places), grid.width)
        made[:, first:end] = start + np.stack([np.zeros_like(rows), rows, columns])
        start += max(grid.height, grid.width)
        place, column = place + grid.places, end
    made[:, column:] = start + np.arange(len(ids) - column)
    return made
