"""The stage `affinity`: a device for each operation."""
