"""The parts of `benchmarks/compare.py`: workers that each run one engine, the measurements, and the report."""
