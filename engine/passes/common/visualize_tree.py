"""`VisualizeTree`: a pass that draws the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from engine.errors import PassError
from engine.ir import Model
from engine.passes.base import ModelPass
from engine.passes.pictures import picture_options, write_picture
from engine.visualize import SUFFIXES


class VisualizeTree(ModelPass):
    """Writes a picture of the model to `path`, `.svg`, `.dot` or `.html`; changes nothing.

    Nodes show operator, friendly name and, depending on the options, types, shapes and rt_info. They are coloured by
    `affinity` in rt_info. The time of a node, in milliseconds, is taken from `times` (by friendly name, as in a
    profile) or from `time_ms` in rt_info. Raises `PassError` for another suffix or an unwritable path.
    """

    is_transformation = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shapes: bool | None = None,
        types: bool | None = None,
        rt_info: bool | None = None,
        times: Mapping[str, float] | None = None,
    ) -> None:
        self.path = Path(path)
        if self.path.suffix not in SUFFIXES:
            raise PassError(
                f"VisualizeTree: expected a path ending with {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, "
                f"got {self.path.name!r}"
            )
        self.options = picture_options(shapes=shapes, types=types, rt_info=rt_info, times=times)

    def run_on_model(self, model: Model) -> bool:
        """Write the picture; never changes the model."""
        try:
            write_picture(model, self.path, self.options)
        except OSError as e:
            raise PassError(f"VisualizeTree {e}") from e
        return False
