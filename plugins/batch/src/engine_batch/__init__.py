"""BATCH: requests collected into batches for another device. Read `plugin.py`, `collector.py`, `network.py`."""

from engine_batch.plugin import BatchPlugin

__all__ = ["BatchPlugin"]
