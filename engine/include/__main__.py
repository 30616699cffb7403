"""Prints the folder of the C header."""

from engine.include import include_dir

print(include_dir())
