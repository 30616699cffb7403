"""Contexts and tensors on the device, also in memory and a context of the application."""
