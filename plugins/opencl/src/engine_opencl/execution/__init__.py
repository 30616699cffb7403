"""Inferences: contexts with the memory and kernels of one inference at a time, and requests that use them."""
