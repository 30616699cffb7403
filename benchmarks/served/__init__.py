"""The programs of `benchmarks/serving.py`: a server with onnxruntime as a device, and clients."""
