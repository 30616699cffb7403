"""The programs of `benchmarks/serving.py`: our server with onnxruntime as a device, other servers, and clients."""
