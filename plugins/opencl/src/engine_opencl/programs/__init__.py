"""Compiled kernels: tried in a child process, and cached in the process, on disk and in blobs."""
