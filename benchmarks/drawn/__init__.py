"""Seeded blocks of networks as exporters write them, for `blocks.py`."""
