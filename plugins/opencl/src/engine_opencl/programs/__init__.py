"""Compiled kernels: tried in a child process, kept for the process, on disk and in blobs."""
