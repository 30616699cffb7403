"""Device-specific passes: rewrites that are beneficial only with its kernels."""
