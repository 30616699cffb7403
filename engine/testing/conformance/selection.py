"""The selection by pytest's options, for the suite that pytest collects."""

from __future__ import annotations

from typing import Final

from engine.startup import dataclass

LIMIT: Final = 60.0
"""The seconds that a check may wait for the device, unless an option says otherwise."""


@dataclass(slots=True)
class CheckSelection:
    """The device, how long a check may wait for it, and whether checks of memory take thousands of rounds."""

    device: str = "TEMPLATE"
    limit: float = LIMIT
    is_full: bool = False


SELECTED: Final = CheckSelection()
"""Set before the suite is collected."""
