"""What running nodes and moving values costs: by default rates, or measured and kept."""
