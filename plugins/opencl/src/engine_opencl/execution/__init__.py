"""Inferences: contexts that hold the memory and kernels of one at a time, and requests that take them."""
