"""Execution of the parts of an inference: bindings, turns, requests."""
