"""Placement of operations on devices: by users, by priority, or by cost."""
