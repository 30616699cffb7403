"""Passes that are ready to use, one a file; `CommonOptimizations` bundles them."""
