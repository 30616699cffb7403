"""What `benchmarks/serving.py` runs: a server with onnxruntime as a device, and clients."""
