"""Operators that look at whole lines of elements."""
