"""Gather, Scatter and their kin."""
