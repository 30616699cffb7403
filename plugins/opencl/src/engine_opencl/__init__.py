"""OPENCL: GPUs, and any other OpenCL device."""

from engine_opencl.plugin import OpenclPlugin

__all__ = ["OpenclPlugin"]
