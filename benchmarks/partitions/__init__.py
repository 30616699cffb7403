"""What `benchmarks/partition.py` measures."""
