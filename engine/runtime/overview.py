"""The section on first use, in the help of classes that plugins derive."""

from __future__ import annotations

import inspect
from typing import Final

OVERVIEW: Final = "What applications use first:"
"""The line of a docstring above an indented block of code: the main methods, in order of use."""


def show_overview(cls: type, base: type) -> None:
    """Put the overview of `base` below the first paragraph of the docstring of `cls`, or use the docstring of `base`.

    `help(network)` shows the docstring of the plugin's own class, and its methods in alphabetical order, the plugin's
    hooks first.
    """
    if not base.__doc__:
        return  # python -OO removes docstrings
    if not cls.__doc__ or OVERVIEW in cls.__doc__:
        cls.__doc__ = cls.__doc__ or base.__doc__
        return
    described = inspect.cleandoc(base.__doc__).split("\n\n")
    title = described.index(OVERVIEW)
    summary, *rest = inspect.cleandoc(cls.__doc__).split("\n\n")
    cls.__doc__ = "\n\n".join([summary, *described[title : title + 2], *rest])
