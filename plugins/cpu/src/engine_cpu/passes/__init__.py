"""Passes of the device's own: rewrites that pay off only where its kernels are."""
