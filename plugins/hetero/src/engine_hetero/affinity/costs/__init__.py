"""Costs of running nodes and moving values: from default rates, or measured and cached."""
