"""Choosing among candidates for a kernel, by measurement if configured."""
