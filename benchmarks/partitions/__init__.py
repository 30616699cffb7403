"""The measurements of `benchmarks/partition.py`."""
