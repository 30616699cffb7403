"""Convolutions, for CPUs and for GPUs."""
