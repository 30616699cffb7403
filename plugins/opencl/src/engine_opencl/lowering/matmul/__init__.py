"""Matrix products, for CPUs and for GPUs."""
