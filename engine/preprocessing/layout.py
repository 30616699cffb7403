"""Layouts: which axis of a tensor is which, as one letter each, such as `NCHW`."""

from __future__ import annotations

from engine.errors import PreprocessingError

UNNAMED = "?"
"""An axis without a name."""


def checked_layout(text: object) -> str:
    """`text` as a layout: capital letters, each once, and `?` for axes without names. Raises `PreprocessingError`."""
    if not isinstance(text, str) or not text or not all(c == UNNAMED or (c.isascii() and c.isupper()) for c in text):
        raise PreprocessingError(
            f"expected a layout of one capital letter for each axis, such as NCHW (`?` for others), got {text!r}"
        )
    named = text.replace(UNNAMED, "")
    if len(set(named)) < len(named):
        twice = next(letter for letter in named if named.count(letter) > 1)
        raise PreprocessingError(f"layout {text} names axis {twice} twice")
    return text


def check_rank(layout: str, rank: int, what: str) -> None:
    """Raise `PreprocessingError` if a tensor of `rank` axes cannot have this layout."""
    if len(layout) != rank:
        raise PreprocessingError(f"layout {layout} names {len(layout)} axes, but {what} has {rank}")


def permutation(source: str, target: str) -> list[int]:
    """For each axis of `target`, its position in `source`. Raises `PreprocessingError` if the axes are not the same."""
    if sorted(source) != sorted(target) or source.count(UNNAMED) > 1:
        raise PreprocessingError(f"layout {source} cannot become {target}: their axes are not the same")
    return [source.index(letter) for letter in target]
