"""All of these devices: entry points find them here."""

import mutants.numeric
import mutants.numeric_blobs
import mutants.numeric_networks  # noqa: F401
from mutants.numeric_base import MUTANTS, Entry

__all__ = ["MUTANTS", "Entry"]
