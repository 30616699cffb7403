"""Ready-made passes, one per file; `CommonOptimizations` bundles them."""
