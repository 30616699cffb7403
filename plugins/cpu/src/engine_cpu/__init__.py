"""The optimized CPU device. Read `plugin.py`, then `network.py`, `program.py`, `segment.py` a file of `lowering/`."""

from engine_cpu.plugin import CpuPlugin

__all__ = ["CpuPlugin"]
