"""Constructs that exporters have special code for: how they are written, and whether they run."""
