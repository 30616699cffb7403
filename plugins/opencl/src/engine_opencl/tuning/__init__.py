"""Choosing among candidates for a kernel, by measurement where that is asked for."""
