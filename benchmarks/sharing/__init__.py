"""The parts of `benchmarks/processes.py`."""
