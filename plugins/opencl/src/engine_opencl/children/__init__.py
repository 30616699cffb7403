"""Processes that a driver may end instead of this one."""
