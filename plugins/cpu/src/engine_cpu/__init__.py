"""CPU: the fast device. Read `plugin.py`, then `network.py`, `program.py`, `segment.py` and one file of `lowering/`."""

from engine_cpu.plugin import CpuPlugin

__all__ = ["CpuPlugin"]
