"""`is_unicode`: whether texts of JSON can be encoded."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    """Whether a text has characters only; JSON can also contain halves of surrogate pairs, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
