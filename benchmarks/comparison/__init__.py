"""What `benchmarks/compare.py` consists of: workers that each hold one engine, what they run, and the report."""
