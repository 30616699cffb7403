"""Gather, Scatter and similar operators."""
