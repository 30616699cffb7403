"""The optimized CPU device. Read `plugin.py`, `network.py`, `program.py`, `segment.py` and a file of `lowering/`."""

from engine_cpu.plugin import CpuPlugin

__all__ = ["CpuPlugin"]
